"""The jobs: one file each; read, call the library, write."""

from os import environ

# How often a waiting thread of torch looks before it gives its core away; read as torch is loaded.
# By default it goes on looking: next to other load the same steps took 70 s in place of 7, and 1 ms
# of looking still 15. Giving up at once would cost a third of the speed on a machine of one's own.
environ.setdefault("GOMP_SPINCOUNT", "5000")
