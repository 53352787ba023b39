"""What kills, full disks, damaged files, hostile requests and curious readers find."""
