"""The 54 reports of MIMIC-CXR whose text cannot be found by its headers, as data.

Who made the release read these reports and wrote down where their text stands: under a
header that usually means something else, or between two characters.

Source: function `custom_mimic_cxr_rules` in mimic-iv-cxr/txt/section_parser.py of
    github.com/MIT-LCP/mimic-code, commit 20fe4496d96cec2634ed4ae99924b8dc548cd62e.
    Licence: MIT, Copyright (c) 2019 MIT Laboratory for Computational Physiology. Ids and
    numbers are theirs; no text of a report is repeated here.
"""

_STUDIES_UNDER = {
    "examination": (
        50743547,
        53356173,
        55157853,
        59215320,
        59363654,
    ),
    "history": (51491012,),
    "indication": (
        50058765,
        51966317,
        54365831,
        54654948,
        55124749,
        57936451,
    ),
    "note": (56451190,),
    "recommendations": (
        50913680,
        56482935,
        58157373,
        58375018,
        59067458,
        59087630,
        59768032,
    ),
    "technique": (
        50808053,
        53202765,
        59279892,
    ),
}

HEADER_OF = {str(study): header for header, ids in _STUDIES_UNDER.items() for study in ids}
"""Study -> name of the section that holds its report: 23 studies."""

_SPANS = (
    (50196495, 59, 399),
    (50525523, 201, 349),
    (50798377, 0, 0),
    (51410602, 47, 320),
    (52035334, 0, 0),
    (52119491, 179, 454),
    (52648681, 292, 631),
    (52674888, 145, 296),
    (53071062, 0, 0),
    (53182247, 59, 412),
    (53488209, 149, 475),
    (53514462, 73, 377),
    (53607029, 0, 0),
    (54168089, 0, 0),
    (54231141, 0, 0),
    (54875119, 234, 988),
    (54986978, 59, 306),
    (55258338, 192, 568),
    (56412866, 522, 822),
    (56579911, 59, 218),
    (56724958, 0, 0),
    (56760320, 219, 457),
    (57150433, 61, 394),
    (57564132, 233, 554),
    (58235663, 0, 0),
    (59003148, 262, 505),
    (59330497, 140, 655),
    (59505494, 59, 450),
    (59562049, 158, 348),
    (59889364, 172, 453),
    (59982525, 313, 717),
)

SPAN_OF = {str(study): (start, end) for study, start, end in _SPANS}
"""Study -> first character of its text and the one after its last: 31 studies. Both are 0
for the 8 reports that say nothing of the film."""
