"""What radiologists write: nouns, places, carriers and negations per type of finding.

A noun is written `article|phrase`: `a` takes an article, `` (mass) takes none and `+` is
a plural. `{write_to}`, `{rib}`, `{side}` and `{Side}` are filled from the fine finding.
"""

from dataclasses import dataclass

Degrees = tuple[str, str, str]

SIZES: Degrees = ("small", "moderate", "large")
GRADES: Degrees = ("mild", "moderate", "severe")


@dataclass(frozen=True)
class Words:
    """The vocabulary of one type.

    Attributes:
        coarse: nouns that name the type alone.
        fine: nouns that name side and zone too; empty where the type has neither.
        whole: complete sentences that name all that the type has.
        degrees: adjectives for slight, medium and gross; empty: none.
        absent: complete sentences that deny the type.
        denied: nouns for "No X or Y"; empty: never in such a list.
    """

    coarse: tuple[str, ...]
    fine: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    degrees: Degrees | tuple[()] = ()
    absent: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


ZONE_ADJECTIVES = {
    ("right", "lower"): ("right lower lobe", "right basilar", "right lower lung"),
    ("right", "mid"): ("right middle lobe", "right mid lung", "right midlung zone"),
    ("right", "upper"): ("right upper lobe", "right upper lung", "right upper zone"),
    ("left", "lower"): ("left lower lobe", "left basilar", "left lower lung"),
    ("left", "mid"): ("lingular", "left mid lung", "left midlung zone"),
    ("left", "upper"): ("left upper lobe", "left upper lung", "left upper zone"),
}
"""Adjectives for a zone of a lung."""

RIB_ADJECTIVES = {
    ("right", "lower"): ("right lower lateral", "right eighth"),
    ("right", "upper"): ("right upper lateral", "right fifth"),
    ("left", "lower"): ("left lower lateral", "left eighth"),
    ("left", "upper"): ("left upper lateral", "left fifth"),
}
"""Adjectives for a stretch of the rib cage."""

WORDS = {
    "cardiomegaly": Words(
        coarse=("|cardiomegaly", "a|enlarged heart", "|cardiac enlargement"),
        whole=("The heart is enlarged.", "Heart size is enlarged.", "Enlarged cardiac silhouette."),
        degrees=GRADES,
        absent=(
            "Heart size normal.",
            "Heart size is normal.",
            "The heart size is normal.",
            "The heart is normal in size.",
            "No cardiomegaly.",
            "Heart is not enlarged.",
        ),
        denied=("cardiomegaly",),
    ),
    "effusion": Words(
        coarse=("a|pleural effusion", "|pleural fluid", "+|pleural effusions"),
        fine=(
            "a|{side} pleural effusion",
            "a|{side}-sided pleural effusion",
            "a|effusion on the {side}",
            "|{side} pleural fluid",
        ),
        degrees=SIZES,
        absent=(
            "No pleural effusion.",
            "No pleural effusions.",
            "There is no pleural effusion.",
            "There are no pleural effusions.",
            "No pleural effusion is seen.",
        ),
        denied=("pleural effusion", "effusion", "pleural effusions"),
    ),
    "edema": Words(
        coarse=(
            "|pulmonary edema",
            "|interstitial edema",
            "|pulmonary vascular congestion and edema",
            "|edema",
        ),
        whole=("Perihilar haze consistent with pulmonary edema.",),
        degrees=GRADES,
        absent=(
            "No pulmonary edema.",
            "There is no pulmonary edema.",
            "No evidence of pulmonary edema.",
            "No overt pulmonary edema.",
        ),
        denied=("pulmonary edema", "edema"),
    ),
    "pneumonia": Words(
        coarse=("|pneumonia", "|focal consolidation", "a|opacity suggesting pneumonia"),
        fine=(
            "|{place} pneumonia",
            "|{place} consolidation",
            "a|{place} opacity",
            "a|{place} opacity suggesting pneumonia",
        ),
        degrees=("subtle", "patchy", "dense"),
        absent=(
            "No signs of pneumonia.",
            "No evidence of pneumonia.",
            "No focal consolidation.",
            "There is no focal consolidation.",
            "No pneumonia.",
            "No focal opacity to suggest pneumonia.",
        ),
        denied=("focal consolidation", "pneumonia"),
    ),
    "pneumothorax": Words(
        coarse=("a|pneumothorax",),
        fine=(
            "a|{side} pneumothorax",
            "a|{side}-sided pneumothorax",
            "a|{side} apical pneumothorax",
            "a|pneumothorax on the {side}",
        ),
        degrees=SIZES,
        absent=(
            "No pneumothorax.",
            "There is no pneumothorax.",
            "No pneumothorax is seen.",
            "No evidence of pneumothorax.",
        ),
        denied=("pneumothorax",),
    ),
    "atelectasis": Words(
        coarse=("|atelectasis", "|linear atelectasis", "|subsegmental atelectasis"),
        fine=(
            "|{place} atelectasis",
            "|{place} linear atelectasis",
            "|{place} plate-like atelectasis",
        ),
        degrees=("minimal", "mild", "moderate"),
    ),
    "pacemaker": Words(
        coarse=("a|pacemaker", "a|cardiac pacing device"),
        fine=(
            "a|{side}-sided pacemaker",
            "a|{side} chest wall pacer",
            "a|{side} pectoral pacemaker",
        ),
        whole=("{Side}-sided pacemaker leads end in the right ventricle.",),
    ),
    "central line": Words(
        coarse=("a|central venous catheter", "a|central line"),
        fine=(
            "a|{side} internal jugular catheter",
            "a|{side} central venous line",
            "a|{side}-sided central line",
        ),
        whole=("{Side} internal jugular line ends in the low SVC.",),
    ),
    "endotracheal tube": Words(
        coarse=("a|endotracheal tube", "a|ET tube"),
        whole=(
            "Endotracheal tube tip is ___ cm above the carina.",
            "The patient is intubated.",
            "ET tube in standard position.",
        ),
    ),
    "enteric tube": Words(
        coarse=("a|nasogastric tube", "a|enteric tube", "a|NG tube"),
        whole=(
            "Nasogastric tube courses below the diaphragm.",
            "Enteric tube ends in the stomach.",
        ),
    ),
    "sternotomy wires": Words(
        coarse=("+|median sternotomy wires", "+|sternal wires"),
        whole=(
            "Median sternotomy wires are intact.",
            "The patient is status post median sternotomy.",
        ),
    ),
    "nodule": Words(
        coarse=("a|pulmonary nodule", "a|lung nodule"),
        fine=("a|{place} nodule", "a|{place} pulmonary nodule", "a|rounded {place} nodule"),
        degrees=("small", "", "large"),
    ),
    "granuloma": Words(
        coarse=("a|calcified granuloma", "a|granuloma"),
        fine=(
            "a|{place} granuloma",
            "a|calcified {place} granuloma",
            "a|{place} calcified granuloma",
        ),
    ),
    "cavitary mass": Words(
        coarse=("a|cavitary lesion", "a|cavitary mass"),
        fine=(
            "a|{place} cavitary mass",
            "a|{place} cavitary lesion",
            "a|thick-walled {place} cavity",
        ),
    ),
    "rib fracture": Words(
        coarse=("a|rib fracture", "a|displaced rib fracture"),
        fine=(
            "a|{rib} rib fracture",
            "a|displaced {rib} rib fracture",
            "a|fracture of the {rib} rib",
        ),
    ),
    "hiatal hernia": Words(
        coarse=("a|hiatal hernia", "a|retrocardiac hiatal hernia"),
        whole=("Retrocardiac air-fluid level consistent with a hiatal hernia.",),
        degrees=SIZES,
    ),
    "scoliosis": Words(
        coarse=("|scoliosis", "|thoracic scoliosis"),
        fine=("|{side} convex scoliosis", "|{side} convex thoracic scoliosis"),
        whole=("Thoracic spine curves to the {side}.",),
        degrees=GRADES,
    ),
    "elevated hemidiaphragm": Words(
        coarse=("a|elevated hemidiaphragm",),
        fine=("|elevation of the {side} hemidiaphragm", "a|elevated {side} hemidiaphragm"),
        whole=("The {side} hemidiaphragm is elevated.",),
    ),
    "enlarged aorta": Words(
        coarse=("a|enlarged aortic knob", "a|dilated thoracic aorta", "a|prominent aortic arch"),
        whole=("The aorta is dilated.", "The aortic knob is enlarged."),
    ),
    "hilar enlargement": Words(
        coarse=("|hilar enlargement", "|hilar lymphadenopathy"),
        fine=(
            "|{side} hilar enlargement",
            "|{side} hilar lymphadenopathy",
            "a|enlarged {side} hilus",
        ),
        whole=("The {side} hilum is enlarged.",),
    ),
    "apical thickening": Words(
        coarse=("|apical pleural thickening", "|apical scarring"),
        fine=("|{side} apical pleural thickening", "|{side} apical scarring"),
    ),
}
"""The vocabulary of every type in the catalogue."""

CARRIERS = (
    "{np}.",
    "There {is} {a_np}.",
    "{a_np} {is} present.",
    "{a_np} {is} seen.",
    "{a_np} {is} noted.",
    "Again seen {is} {a_np}.",
)
"""Sentences around an asserted noun; `{np}` has no article."""

SUGGESTING = ("Findings suggesting {np}.", "Findings consistent with {np}.")
"""Carriers for mass nouns of pneumonia, edema and cardiomegaly."""

HEDGES = ("Possible {np}.", "{a_np} cannot be excluded.", "Findings may represent {np}.")
"""Carriers that leave a finding open."""

DENIALS = ("No {list}.", "There is no {list}.", "No evidence of {list}.", "No {list} is seen.")
"""Carriers of two or more denied nouns."""

NORMAL = (
    "No acute cardiopulmonary process.",
    "No acute cardiopulmonary abnormality.",
    "No acute intrathoracic process.",
    "Normal chest radiograph.",
    "Unremarkable chest radiograph.",
    "No radiographic evidence of acute disease.",
)
"""Sentences that are true of an image without any finding."""

CLEAR = {
    "lungs": (
        "The lungs are clear.",
        "Lungs are clear.",
        "The lungs are well expanded and clear.",
        "Both lungs are clear.",
    ),
    "mediastinum": (
        "Cardiomediastinal silhouette is normal.",
        "The cardiac, mediastinal and hilar contours are normal.",
        "Cardiomediastinal contours are within normal limits.",
    ),
    "bones": (
        "Osseous structures are unremarkable.",
        "No acute osseous abnormality.",
        "Imaged bony structures are intact.",
    ),
}
"""Sentences that deny every type of one region."""

INDICATIONS = (
    "___ year old {sex} with cough and fever  // evaluate for pneumonia",
    "___ year old {sex} with shortness of breath  // ? acute process",
    "___ year old {sex} with chest pain, please evaluate",
    "___ year old {sex} status post fall  // ? fracture",
    "___ year old {sex} with hypoxia  // interval change",
    "___ {sex} with dyspnea, assess for effusion or edema.",
)
"""Clinical questions; they say nothing about the image."""
