"""What reports call the findings, and the words that decide what is said about them, as data.

Our own lists. A cue stands for what it does, and the reading rules know only that. A concept
is the finest thing distinguished; several concepts may be one CheXpert finding, and some are
none: they only say that an image is not normal.

Phrases are in lower case, in the singular; plurals, hyphens and one slip in a long word are
forgiven. Where two phrases begin at one word the longer wins, which is how "clear of" is a
negation and "clear" is not.
"""

from enum import Enum, auto

LABELS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Enlarged Cardiomediastinum",
    "Fracture",
    "Lung Lesion",
    "Lung Opacity",
    "No Finding",
    "Pleural Effusion",
    "Pleural Other",
    "Pneumonia",
    "Pneumothorax",
    "Support Devices",
)
"""The 14 CheXpert labels, as MIMIC-CXR-JPG's table names them."""


class Cue(Enum):
    """What a word or phrase does to the findings near it."""

    DENY = auto()
    """Negates what follows: "no", "without", "negative for"."""
    NOT = auto()
    """Negates what follows, or what comes before when a word of seeing follows."""
    DENY_BEFORE = auto()
    """Negates what comes before: "has resolved", "is absent"; it is there after a "not"."""
    EXCLUDED = auto()
    """Negates what comes before, and leaves it open after a "not": "cannot be excluded"."""
    EXCLUDE = auto()
    """Hedges what follows after a "not": "cannot rule out"; else asks for it: "to exclude"."""
    ASK = auto()
    """What follows is asked for or hard to judge, not stated: "check for", "sensitivity for"."""
    ASK_BEFORE = auto()
    """What comes before is hard to judge here: "is poorly evaluated", "better seen on CT"."""
    IF_ANY = auto()
    """Hedges the concept before, else what follows: "trace effusion, if any"."""
    HEDGE_EITHER = auto()
    """Hedges what follows, else the concept before: "in the appropriate clinical setting"."""
    HEDGE = auto()
    """Leaves what follows open: "may represent", "possible"."""
    HEDGE_BEFORE = auto()
    """Leaves what comes before open: "is possible"."""
    HEDGE_BOTH = auto()
    """Leaves both neighbours open: "versus"."""
    PAST = auto()
    """What follows is history, or why something was done, and no claim."""
    PAST_BEFORE = auto()
    """What comes before is history: "by history"."""
    CHANGE = auto()
    """After a negation it is the change that is denied, not the finding."""
    BREAK = auto()
    """Ends every scope: "but", "there is"."""
    OR = auto()
    """Goes on with a list, negated or not."""
    AND = auto()
    """Goes on with a list unless an independent statement follows."""
    COMMA = auto()
    """As AND, but a side is not shared across it."""
    WITH = auto()
    """Ends a negation."""
    VERB = auto()
    """A verb of being: the subject ends here."""
    SEEN = auto()
    """A word of seeing, which "not" turns into a negation of what comes before."""
    VIEW = auto()
    """A projection: what is not seen on one may be seen on the other."""
    DEGREE = auto()
    """Size, degree or persistence: after a comma it begins a statement of its own."""
    NORMAL = auto()
    """Calls its subject normal."""
    LARGE = auto()
    """Calls its subject enlarged, if only just: readers of images count "borderline" so."""
    NEAR_NORMAL = auto()
    """Calls its subject neither normal nor enlarged."""
    OTHERWISE = auto()
    """Limits a following "normal" to what was not named."""
    ABNORMALITY = auto()
    """Anything abnormal at all; negated, it calls the image normal."""
    NEUTRAL = auto()
    """Holds a word that would be a cue by itself."""
    LEFT = auto()
    RIGHT = auto()
    BOTH = auto()


CUES = {
    Cue.DENY: """
        no; without; negative; negative for; free of; clear of; absence of; lack of; deny;
        neither; nor; resolution of; clearing of; removal of; rather than; no evidence of; no
        evidence for; no evidence to suggest; no sign of; no definite; no convincing; no
        suspicious; no concerning; no suspected; not suggestive of; unlikely that there is;
        unlikely that there are; unlikely to be; free from; devoid of; no indication of; no
        indication for
    """,
    Cue.NOT: """
        not; cannot; can not; no longer; never; nothing; isn't; aren't; wasn't; hasn't; can't;
        couldn't; doesn't; don't
    """,
    Cue.DENY_BEFORE: """
        resolved; cleared; removed; absent; disappeared; unlikely; less likely; none; withdrawn;
        been pulled; discontinued; taken out
    """,
    Cue.EXCLUDED: "excluded; ruled out",
    Cue.HEDGE: """
        may; might; could; possible; possibly; possibility of; perhaps; potential; potentially;
        presumed; suggest; suggesting; suggestive of; suggestion of; suspect; suspected;
        suspicious for; suspicion for; suspicion of; concern for; concerning for; concern is for;
        worrisome for; question; questionable; question of; ?; equivocal; indeterminate;
        differential; differential diagnosis; consider; consideration; whether; if; if there is;
        if there are; either; any residual; any remaining; correlate for; correlate with;
        correlate clinically for; clinical correlation for; little if any; minimal if any; small
        if any; trace if any; mild if any; tiny if any
    """,
    Cue.ASK: """
        check for; evaluate for; evaluating for; evaluation for; evaluation of; assess for;
        assessing for; assessment for; assessment of; look for; looking for; search for; screen
        for; screening for; sensitivity; sensitivity for; sensitivity to detect; sensitive for;
        sensitive to; detect; detection of; reason for exam; reason for examination; indication;
        clinical indication; clinical concern for; r / o
    """,
    Cue.ASK_BEFORE: """
        poorly evaluated; poorly assessed; poorly seen; poorly visualized; incompletely evaluated;
        incompletely assessed; suboptimally evaluated; suboptimally assessed; suboptimally seen;
        not well evaluated; not well assessed; not well depicted; not clearly seen; not clearly
        visualized; not optimally evaluated; not adequately evaluated; not fully evaluated; cannot
        be assessed; cannot be evaluated; limited in evaluation; difficult to assess; difficult to
        evaluate; difficult to see; better seen; better demonstrated; better assessed; better
        evaluated; better characterized; better visualized; better depicted; better appreciated;
        best seen on ct; below the resolution; seen on ct; noted on ct; described on ct; shown on
        ct; known from ct; identified on ct; demonstrated on ct; seen on prior ct; noted on prior
        ct; described on prior ct; identified on prior ct; seen on the ct; seen on recent ct; seen
        on the recent ct; may be missed; could be missed; can be missed; may be obscured; could be
        obscured; may be occult; could be occult; may not be visible; may not be apparent; may be
        inapparent
    """,
    Cue.IF_ANY: "if any; if present; if at all; if real",
    Cue.HEDGE_EITHER: """
        difficult to exclude; hard to exclude; in the appropriate clinical setting; in the
        appropriate clinical context; in the appropriate setting; in the correct clinical setting;
        in the correct clinical context; in the proper clinical setting; in the proper clinical
        context; in the right clinical setting; in the right clinical context; in an appropriate
        clinical setting; depending on the clinical setting; given the appropriate clinical
        setting
    """,
    Cue.EXCLUDE: "exclude; rule out; excluding; ruling out",
    Cue.HEDGE_BEFORE: """
        is possible; are possible; may be present; could be present; might be present; is
        suspected; are suspected; is questioned; is questionable; is a possibility; is a
        consideration; remain a consideration; be considered; would be a consideration; in the
        differential; not well seen; not well visualized; not well demonstrated; less well seen;
        likely present; is likely
    """,
    Cue.HEDGE_BOTH: "versus; vs; as opposed to",
    Cue.PAST: """
        history of; with history; hx of; h / o; history significant for; history is significant
        for; history notable for; history remarkable for; treated for; treatment for; treatment
        of; antibiotic for; therapy for; placed for; placement for; thoracentesis for;
        thoracentesis of; lobectomy for; pneumonectomy for; resection for; surgery for;
        pleurodesis for; radiation for; drainage of; draining of; evacuation of; resection of;
        excision of; biopsy of; ablation of; embolization of; repair of
    """,
    Cue.PAST_BEFORE: "by history; by report; per history; per report",
    Cue.CHANGE: """
        change; increase; decrease; improvement; progression; resolution; clearing; alteration;
        difference; growth; worsening of; enlargement of
    """,
    Cue.BREAK: """
        but; however; findings:; impression:; although; though; except; exception; with the
        exception of; with exception of; aside from; other than; apart from; besides; which; who;
        yet; whereas; while; because; despite; in spite of; limited by; obscured by; limited due
        to; limited secondary to; nevertheless; there is; there are; there was; there remain;
        there has been; there have been
    """,
    Cue.OR: "or; /",
    Cue.AND: "and; as well as",
    Cue.COMMA: ",",
    Cue.WITH: "with",
    Cue.VERB: """
        is; are; was; were; be; been; being; has; have; appear; remain; persist; look; show;
        demonstrate; measure; overlie; project; terminate; lie
    """,
    Cue.SEEN: """
        seen; identified; visualized; visualised; noted; present; evident; appreciated;
        demonstrated; redemonstrated; apparent; visible; detected; found; observed; recognized;
        suggested; shown; confirmed; reproduced; depicted; discernible; perceptible; discerned;
        delineated
    """,
    Cue.VIEW: """
        lateral; lateral view; on the lateral; on the lateral view; on lateral; on lateral view;
        on frontal; on frontal view; on the frontal; on the frontal view; on pa view; on the pa;
        on the pa view
    """,
    Cue.DEGREE: """
        small; mild; mildly; minimal; moderate; moderately; large; severe; stable; unchanged;
        persistent; increased; decreased; tiny; trace; slight; slightly; the; a; patchy; stably;
        again; worsening; new; improved; improving; low; chronic; old; interval; multiple;
        minimally; scattered; streaky; linear
    """,
    Cue.NORMAL: """
        normal; within normal; within normal limit; within limit; within limit of normal; within
        the limit of normal; normal limit; limit of normal; unremarkable; not remarkable; clear;
        intact; sharp; preserved; wnl; negative chest; non enlarged; nonenlarged; non dilated
    """,
    Cue.LARGE: """
        enlarged; enlargement; widened; widening; wide; prominent; prominence; is large; are
        large; remain large; slightly large; mildly large; moderately large; markedly large; very
        large; borderline; borderline in size; borderline size; borderline large; borderline
        enlarged; borderline enlargement; borderline prominent; dilated
    """,
    Cue.NEAR_NORMAL: """
        upper limit; upper limit of normal; the upper limit of normal; upper limit for normal;
        upper limit normal; upper normal; top normal; high normal; low normal; near normal;
        borderline normal
    """,
    Cue.OTHERWISE: "otherwise; remainder; remaining; rest; else",
    Cue.ABNORMALITY: "abnormality; disease; process; finding; pathology; illness",
    Cue.NEUTRAL: """
        not only; no doubt; not included; not optimally; not available; unresolved; partially
        resolved; incompletely resolved; nearly resolved; almost resolved; almost completely
        resolved; nearly completely resolved; largely resolved; mostly resolved; partially
        cleared; nearly cleared; largely cleared; near complete resolution; near complete
        resolution of; nearly complete resolution of; almost complete resolution of; partial
        resolution of; incomplete resolution of; partial clearing of; incomplete clearing of; near
        complete clearing of; strongly suggest; strongly suggestive of; most suggestive of;
        compared; consistent; normal variant; normal variation; right away; in line; line of
        sight; lead to; heart rate; chest pain; mass effect; hemithorax; bone density; density of
        the bone; bone mineral density; bony density; soft tissue density; right heart border;
        left heart border; shift of the mediastinum; chest cavity; pleural cavity; thoracic
        cavity; abdominal cavity; peritoneal cavity; prior exam; prior examination; prior study;
        prior radiograph; prior film; prior chest radiograph; prior chest x ray; previous exam;
        previous examination; previous study; previous radiograph; previous film; previous chest
        radiograph; previous chest x ray; last exam; last examination; last study; last
        radiograph; last film; last chest radiograph; last chest x ray; recent exam; recent
        examination; recent study; recent radiograph; recent film; recent chest radiograph; recent
        chest x ray; comparison exam; comparison examination; comparison study; comparison
        radiograph; comparison film; comparison chest radiograph; comparison chest x ray
    """,
    Cue.LEFT: "left; left sided; leftward; lt; lul; lll; lingula; lingular",
    Cue.RIGHT: "right; right sided; rightward; rt; rul; rml; rll",
    Cue.BOTH: """
        both; bilateral; bilaterally; bibasilar; bibasilarly; bibasal; bi basilar; biapical;
        biapically; bi apical; right and left; left and right; right or left; left or right; right
        greater than left; left greater than right; right more than left; left more than right;
        right larger than left; left larger than right
    """,
}
"""Cue -> phrases, separated by semicolons."""

FINDINGS_OF: dict[str, tuple[str, ...]] = {
    "Atelectasis": ("Atelectasis",),
    "Cardiomegaly": ("Cardiomegaly",),
    "Consolidation": ("Consolidation",),
    "Edema": ("Edema",),
    "Wide Mediastinum": ("Enlarged Cardiomediastinum",),
    "Fracture": ("Fracture",),
    "Mass": ("Lung Lesion",),
    "Nodule": ("Lung Lesion",),
    "Nodular Opacity": ("Lung Lesion",),
    "Opacity": ("Lung Opacity",),
    "Infiltrate": ("Lung Opacity",),
    "Fibrosis": ("Lung Opacity",),
    "Effusion": ("Pleural Effusion",),
    "Pleural Thickening": ("Pleural Other",),
    "Pleural Scar": ("Pleural Other",),
    "Pneumonia": ("Pneumonia",),
    "Infection": ("Pneumonia",),
    "Pneumothorax": ("Pneumothorax",),
    "Hydropneumothorax": ("Pleural Effusion", "Pneumothorax"),
    "Device": ("Support Devices",),
    "Calcified Nodule": (),
    "Emphysema": (),
    "Hernia": (),
    "Other": (),
}
"""Concept -> CheXpert findings; none: something abnormal that CheXpert does not name."""

LEFT_OPEN_BY = {
    "Volume Loss": ("Atelectasis",),
    "Congestion": ("Edema",),
    "Blunting": ("Pleural Effusion",),
}
"""Concept -> findings that it makes possible: asserted it hedges them, denied it denies them."""

PHRASES_OF = {
    "Atelectasis": """
        atelectasis; atelectases; atelectatic; atelectatic change; collapsed lung; collapsed lobe;
        atelectasia; collapse; collapsed
    """,
    "Volume Loss": "volume loss; loss of volume",
    "Cardiomegaly": """
        cardiomegaly; cardiac enlargement; enlargement of the heart; heart enlargement; enlarged
        heart; cardiac hypertrophy; enlargement of the cardiac silhouette; enlargement of cardiac
        silhouette; enlargement of the cardiopericardial silhouette; cardiac silhouette
        enlargement; enlarged cardiac silhouette; enlarged heart size; heart is large; heart is
        big; large heart; heart size is increased; increased heart size; heart size is large;
        heart is increased in size; increase in heart size; increase in cardiac size; increase in
        size of the heart; increase in size of the cardiac silhouette; increase in the size of the
        heart; increased cardiac silhouette; increased size of the heart; increased size of the
        cardiac silhouette; heart size is mildly increased; heart size is slightly increased;
        heart size increased; cardiac silhouette is increased; increased cardiac size; heart is
        mildly increased in size
    """,
    "Consolidation": """
        consolidation; consolidative; consolidated; consolidative opacity; consolidating;
        consolidative change; airspace consolidation; air space consolidation; consolidate
    """,
    "Edema": """
        edema; oedema; pulmonary edema; interstitial edema; edematous; alveolar edema; kerley
        line; kerley b line; septal line
    """,
    "Congestion": """
        vascular congestion; pulmonary congestion; venous congestion; congestive change;
        congested; congestion; vascular engorgement; engorged; cephalization; heart failure; chf;
        congestive heart failure; congestive failure; cardiac decompensation; vascular prominence;
        vascular redistribution; pulmonary venous hypertension; cardiac failure; fluid overload;
        volume overload; indistinct vessel; indistinct vasculature; vascular indistinctness;
        indistinctness of the vasculature; pulmonary vascular congestion
    """,
    "Wide Mediastinum": """
        widened mediastinum; mediastinal widening; mediastinal enlargement; wide mediastinum;
        widening of the mediastinum; widening of the superior mediastinum; enlarged mediastinum;
        enlarged cardiomediastinum; enlarged cardiomediastinal silhouette; mediastinal mass;
        enlargement of the mediastinum; enlargement of the cardiomediastinal silhouette;
        mediastinal prominence; cardiomediastinal enlargement; cardiomediastinal widening;
        prominent mediastinum
    """,
    "Fracture": """
        fracture; fractured; compression fracture; compression deformity; rib fracture; wedge
        deformity; vertebral body compression; wedging
    """,
    "Mass": """
        mass; masslike; mass like; mass like opacity; masslike opacity; mass density; tumor;
        tumour; neoplasm; malignancy; carcinoma; lung cancer; neoplastic; cavitary lesion;
        metastasis; metastases; metastatic disease; lung lesion; pulmonary lesion; lesion;
        cavitary mass; cavity
    """,
    "Nodule": "nodule; micronodule; pulmonary nodule; coin lesion; nodular lesion",
    "Calcified Nodule": "calcified nodule; calcified pulmonary nodule; calcified lung nodule",
    "Nodular Opacity": """
        nodular density; nodular opacity; nodular opacification; nodularity; nodular focus;
        nodular shadow; round density; rounded density; rounded opacity; round opacity; nodular
    """,
    "Opacity": """
        opacity; opacification; opacified; airspace disease; air space disease; airspace opacity;
        air space opacity; interstitial opacity; interstitial marking; interstitial prominence;
        interstitial thickening; interstitial change; interstitial pattern; interstitial lung
        disease; interstitial disease; reticular pattern; reticular marking; reticulation;
        reticulonodular; hazy density; patchy density; basilar density; hazy; parenchymal density;
        lung density; haziness; haze; airspace process; alveolar disease; scar; scarring;
        parenchymal scarring; bronchovascular marking; lung marking; density; streaky density; ill
        defined density; peribronchial thickening; bronchial wall thickening; peribronchial
        cuffing; bronchial cuffing; ground glass; silhouetting; white out; whiteout; shadowing
    """,
    "Infiltrate": """
        infiltrate; infiltration; infiltrative; infiltrative change; interstitial infiltrate;
        airspace infiltrate; alveolar infiltrate; nodular infiltrate
    """,
    "Fibrosis": """
        fibrosis; fibrotic; fibrotic change; pulmonary fibrosis; interstitial fibrosis;
        interstitial fibrotic change; honeycombing; fibrotic scarring; fibronodular; fibrotic
        opacity
    """,
    "Effusion": """
        effusion; pleural effusion; pleural fluid; hydrothorax; hemothorax; fluid collection;
        fluid in the pleural space; fluid in the right pleural space; fluid in the left pleural
        space; fluid in the minor fissure; fluid in the major fissure; fluid along the fissure;
        fluid within the fissure; loculated fluid; intrafissural fluid; fluid in the fissure;
        pleural collection; fissural fluid; subpulmonic fluid; parapneumonic effusion; layering
        fluid; empyema
    """,
    "Blunting": "blunting; blunted",
    "Pleural Thickening": """
        pleural thickening; apical thickening; pleural plaque; apical cap; apical capping;
        thickened pleura; thickening of the pleura; thickening of the fissure; fissural
        thickening; apical pleural thickening; pleural reaction; pleural parenchymal thickening;
        thickening of the minor fissure; thickening of the major fissure; pleural capping; apical
        pleural capping; thickening in the fissure; fissure thickening; thickening of the right
        pleura; thickening of the left pleura; thickening of the apical pleura; thickened fissure;
        thickened minor fissure; thickened major fissure; thickening along the fissure; thickening
        of the pleural surface; pleural and parenchymal thickening; pleural scarring / thickening;
        pleural scar / thickening; pleuroparenchymal thickening; pleural based thickening;
        thickening of the right minor fissure; interlobar fissural thickening
    """,
    "Pleural Scar": """
        pleural scarring; pleural scar; pleural calcification; pleural based density; pleural
        parenchymal scarring; pleuroparenchymal scarring; fibrothorax
    """,
    "Pneumonia": """
        pneumonia; bronchopneumonia; pneumonic; pneumonitis; aspiration pneumonia; aspiration
        pneumonitis
    """,
    "Infection": """
        infection; infectious process; infectious; infectious infiltrate; infectious etiology
    """,
    "Pneumothorax": "pneumothorax; pneumothoraces; pleural air; pleural air collection; ptx",
    "Hydropneumothorax": "hydropneumothorax; hydropneumothoraces; hemopneumothorax",
    "Device": """
        pacemaker; pacer; pacing lead; pacemaker lead; defibrillator; icd; aicd; picc; picc line;
        central line; central venous line; central venous catheter; catheter; venous catheter;
        port a cath; portacath; mediport; port catheter; infusion port; chest port; chest tube;
        endotracheal tube; et tube; ett; nasogastric tube; ng tube; enteric tube; feeding tube;
        orogastric tube; tracheostomy tube; tracheostomy; dobbhoff; swan ganz; stent; prosthesis;
        prosthetic valve; valve replacement; artificial valve; mechanical valve; valve prosthesis;
        sternotomy wire; sternal wire; surgical hardware; orthopedic hardware; fusion hardware;
        spinal hardware; hardware; intra aortic balloon pump; drain; drainage tube; pigtail
        catheter; shunt; shunt tubing; support device; lead; electrode; line tip; generator;
        stimulator; loop recorder; arthroplasty; vascular access; dialysis catheter; venous access
        device; rod; screw; plate and screw; cannula; vp shunt; support line; lines and tubes;
        monitoring device; tube; aortic valve replacement; intubated; intubation; cardiac pacing
        device; pacing device; support apparatus; internal jugular line; subclavian line; jugular
        catheter; subclavian catheter; tubing; median sternotomy wire; port; device; assist
        device; embolization coil; coil; dialysis line; venous line; impella; ecmo cannula;
        endovascular graft
    """,
    "Emphysema": """
        emphysema; emphysematous; emphysematous change; bullous emphysema; emphysematous disease
    """,
    "Hernia": """
        hiatal hernia; hiatus hernia; diaphragmatic hernia; bochdalek hernia; morgagni hernia;
        hernia; paraesophageal hernia
    """,
    "Other": """
        granuloma; calcified granuloma; granulomatous disease; calcified; tortuous; granulomatous
        change; granulomatous calcification; calcification; calcified lymph node; calcified hilar
        lymph node; calcinosis; tortuosity; ectasia; ectatic; uncoiled; unfolded; atherosclerosis;
        atherosclerotic; arteriosclerosis; aneurysm; unfolding; scoliosis; dextroscoliosis;
        levoscoliosis; kyphosis; kyphotic; degenerative; degenerative change; degenerative
        disease; spondylosis; osteophyte; osteophytosis; osteoarthritis; arthritis; arthropathy;
        osteopenia; osteopenic; osteoporosis; demineralization; sclerosis; sclerotic;
        hyperinflation; hyperinflated; hyperexpansion; hyperexpanded; overinflation; overinflated;
        hyperlucent; hyperlucency; hypoinflation; hypoinflated; hypoventilatory; low lung volume;
        hypoaeration; underinflated; underexpanded; diminished lung volume; decreased lung volume;
        shallow inspiration; copd; chronic obstructive pulmonary disease; obstructive lung
        disease; flattening; flattened; flattened diaphragm; eventration; elevated; elevation;
        tenting; deformity; clip; suture; staple; surgical change; postsurgical; postsurgical
        change; postoperative; post operative change; mastectomy; cholecystectomy; bronchiectasis;
        spur; bronchitic; bronchitis; lymphadenopathy; adenopathy; pneumomediastinum;
        pneumoperitoneum; free air; subcutaneous emphysema; subcutaneous air; foreign body;
        bullet; shrapnel; azygos lobe; azygous lobe; azygos fissure; cervical rib; dislocation;
        separation; situs; bone island; pectus; pectus excavatum; spurring; healed; goiter; shift;
        deviation; dilatation; distended; thickening; inflammatory change; reactive airway
        disease; tuberculosis; sarcoidosis; asthma; lucency; fat pad; surgical absence; air fluid
        level; contour abnormality; abnormal; pulmonary artery hypertension; pulmonary arterial
        hypertension; pulmonary hypertension; chronic change; chronic lung disease; chronic
        appearing change; chronic lung change; diffuse lung disease; vertebral collapse; vertebral
        body collapse; collapse of the vertebral body; collapsed vertebra; pericardial effusion;
        pericardial fluid; granulomatous infection; previous infection; prior infection; old
        infection; remote infection; prior pneumonia; previous pneumonia; bony lesion; bone
        lesion; lucent lesion; osseous lesion; lytic lesion; blastic lesion; sclerotic lesion;
        expansile lesion; cavitation; ventricular enlargement; atrial enlargement; ventricular
        hypertrophy; scoliotic; curvature; bronchovascular crowding; low volume; destructive
        lesion; aggressive lesion; sternotomy; median sternotomy; aspiration; contusion;
        hemorrhage; hematoma; bronchospasm; bronchiolitis; small airway disease; osteophytic;
        bullous disease; bulla; bullae; bullous; bleb; degeneration; hypoventilated;
        hypoventilation; monitor lead; monitoring lead; external lead; telemetry lead; ekg lead;
        ecg lead; piercing; nipple ring; contrast material; motion artifact; increased pulmonary
        marking; prominent pulmonary marking; increased marking; prominent marking; coarse
        marking; pectus carinatum
    """,
}
"""Concept -> phrases, separated by semicolons."""

REGIONS_OF = {
    "heart": """
        heart; heart size; cardiac; cardiac size; cardiac silhouette; cardiac contour; cardiac
        shadow; heart silhouette; heart contour; heart shadow; cardiopericardial silhouette; size
        of the heart; cardiac silhouette size; cardiac and pericardial silhouette; heart border;
        cardiac border
    """,
    "cardiomediastinum": """
        cardiomediastinal; cardiomediastinal silhouette; cardiomediastinal contour;
        cardiomediastinum; cardio mediastinal silhouette; cardio mediastinal contour; cardiac and
        mediastinal silhouette; cardiac and mediastinal contour; heart and mediastinum;
        mediastinal and cardiac silhouette; cardiac mediastinal silhouette; cardiac mediastinal
        contour; cardiomediastinal size; cardiovascular silhouette; heart mediastinum;
        cardiomediastinal structure; cardiomediastinal shadow
    """,
    "mediastinum": """
        mediastinum; mediastinal; mediastinal contour; mediastinal silhouette; mediastinal
        structure; superior mediastinum; mediastinal width; mediastinal shadow; mediastinal size
    """,
    "lungs": """
        lung; lung field; lung parenchyma; pulmonary parenchyma; lung volume and clarity;
        pulmonary field; lung space
    """,
    "other": """
        lung base; base; lung apex; apex; apices; lobe; lung zone; midlung; upper lung; lower
        lung; lung volume; retrocardiac region; airway; trachea; bronchi; diaphragm;
        hemidiaphragm; hila; hilum; hilar; aorta; upper abdomen; abdomen; aortic; aortic contour;
        soft tissue; hilar contour; right atrium; right ventricle; svc; superior vena cava; vena
        cava; carina; stomach; tip; position
    """,
    "pleura": """
        pleura; pleural; pleural space; pleural surface; costophrenic angle; costophrenic sulcus;
        costophrenic sulci; costophrenic; pleural margin; pleural recess; lateral angle
    """,
    "vessels": """
        pulmonary vasculature; pulmonary vascularity; vascularity; vasculature; pulmonary vessel;
        pulmonary vascular; pulmonary vascular marking; pulmonary vascular pattern
    """,
    "bones": """
        bone; bony; osseous; osseous structure; bony structure; skeletal; skeletal structure;
        skeleton; bony thorax; rib; spine; thoracic spine; visualized bone; vertebral body;
        musculoskeletal; clavicle; vertebra; thoracic cage; rib cage
    """,
    "chest": """
        chest; exam; examination; study; radiograph; x ray; chest x ray; chest radiograph; thorax;
        film; cxr; chest film; appearance of the chest; chest radiographic examination
    """,
    "heart and lungs": """
        cardiopulmonary; cardiothoracic; pulmonary; thoracic; intrathoracic; cardiopulmonary exam
    """,
}
"""Part of the image -> phrases that name it."""

NEGATED_WHERE_NORMAL = {
    "heart": ("Cardiomegaly",),
    "cardiomediastinum": ("Cardiomegaly", "Wide Mediastinum"),
    "mediastinum": ("Wide Mediastinum",),
    "lungs": (
        "Atelectasis",
        "Consolidation",
        "Edema",
        "Infiltrate",
        "Mass",
        "Nodule",
        "Opacity",
        "Pneumonia",
    ),
    "other": (),
    "pleura": ("Effusion",),
    "vessels": ("Congestion",),
    "bones": ("Fracture",),
    "chest": (),
    "heart and lungs": (),
}
"""Part of the image -> concepts that are denied by calling it normal or clear."""

ASSERTED_WHERE_LARGE = {
    "heart": "Cardiomegaly",
    "cardiomediastinum": "Wide Mediastinum",
    "mediastinum": "Wide Mediastinum",
    "vessels": "Congestion",
}
"""Part of the image -> concept that is asserted by calling it enlarged."""

ZONES = {
    "upper": "upper; apical; apex; apices; biapical; biapically; rul; lul",
    "middle": "middle; mid; midlung; lingula; lingular; hilar; hila; hilum; perihilar; rml",
    "lower": """
        lower; basilar; basal; base; basally; bibasilar; bibasilarly; bibasal; costophrenic; rll;
        lll
    """,
    "": """
        upper limit; upper normal; upper abdomen; upper abdominal; upper quadrant; upper extremity;
        lower extremity; upper svc; mid svc; lower svc; upper thoracic; mid thoracic; lower
        thoracic; lower cervical; lower neck; lower end; middle mediastinum; base of the neck; base
        of the heart; hilar lymph node; hilar node; hilar adenopathy; hilar lymphadenopathy
    """,
}
"""Zone of the lungs -> words that name it; the last are words that hold one and name none."""

SEVERITIES = {
    "mild": """
        mild; mildly; minimal; minimally; small; tiny; trace; slight; slightly; subtle; minor; faint
    """,
    "moderate": "moderate; moderately",
    "severe": "severe; severely; large; marked; markedly; massive; extensive; gross",
}
"""Size or degree -> words that name it."""

MIDLINE = frozenset({"Cardiomegaly", "Enlarged Cardiomediastinum"})
"""Findings that have no side, whatever side word stands near."""


def split_phrases(text: str) -> list[str]:
    """Split an entry of the lexicon into its phrases."""
    return [" ".join(phrase.split()) for phrase in text.split(";")]
