"""Words that decide what a report says of a finding: our own lists, as data.

Each cue stands for what it does, and the reading rules know only that.
Where two cues begin at one word the longer wins, which is how "no change" and "cannot
exclude" are kept from being negations.
"""

from enum import Enum, auto


class Cue(Enum):
    """What a word or phrase does to the findings near it."""

    DENY = auto()
    """Negates what follows: "no", "without", "negative for"."""
    NOT = auto()
    """Negates what follows, or what comes before when a word of seeing follows."""
    DENY_BEFORE = auto()
    """Negates what comes before: "has resolved", "is absent"."""
    HEDGE = auto()
    """Leaves what follows open: "may represent", "possible"."""
    HEDGE_BEFORE = auto()
    """Leaves what comes before open: "cannot be excluded"."""
    HEDGE_BOTH = auto()
    """Leaves both neighbours open: "versus"."""
    PAST = auto()
    """What follows is history and no claim."""
    CHANGE = auto()
    """After a negation it is the change that is denied, not the finding."""
    BREAK = auto()
    """Ends every scope: "but", "there is"."""
    OR = auto()
    """Goes on with a list, negated or not."""
    AND = auto()
    """Goes on with a list unless an independent statement follows."""
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
    """Calls its subject enlarged, if only just: readers of films count "borderline" so."""
    NEAR_NORMAL = auto()
    """Calls its subject neither normal nor enlarged."""
    OTHERWISE = auto()
    """Limits a following "normal" to what was not named."""
    ABNORMALITY = auto()
    """Anything abnormal at all; negated, it calls the film normal."""
    NEUTRAL = auto()
    """Holds a word that would be a cue by itself."""
    LEFT = auto()
    RIGHT = auto()
    BOTH = auto()


CUES = {
    Cue.DENY: """
        no; without; negative for; free of; clear of; no evidence of; no evidence for; absence of;
        deny; no sign of; no radiographic evidence of; lack of; resolution of; interval resolution
        of; neither; nor; clearing of; complete resolution of; removal of; interval removal of; no
        definite; no suspicious; no convincing; no evidence to suggest; not suggestive of; rather
        than; absent; negative; status post removal of; s/p removal of; no concerning; no
        suspected; none
    """,
    Cue.NOT: """
        not; no longer; never; nothing; isn't; aren't; wasn't; doesn't; don't; non; hasn't;
        cannot; can not; couldn't
    """,
    Cue.DENY_BEFORE: """
        resolved; has resolved; have resolved; cleared; has cleared; have cleared; is absent; are
        absent; has been removed; have been removed; was removed; removed; is excluded; ruled out;
        is ruled out; is negative; has disappeared; disappeared; has completely resolved;
        unlikely; less likely; has nearly resolved
    """,
    Cue.HEDGE: """
        may represent; may be; might be; could be; could represent; might represent; may reflect;
        possible; possibly; could reflect; suggest; suggestive of; suggesting; suspicious for;
        suspicion for; suspect; suspicion of; concerning for; concern for; worrisome for;
        question; questionable; question of; ?; cannot exclude; cannot rule out; can not exclude;
        not exclude; difficult to exclude; not rule out; differential; differential includes;
        differential diagnosis; rule out; evaluate for; to exclude; assess for; equivocal; may;
        might; could; perhaps; potential; potentially; if; whether; presumed; evaluation for;
        indeterminate; suggests; raises the possibility of; possibility of; and or; suspected; may
        indicate; could indicate; may relate to; may have; can be seen with; seen with; may also
        be; either; consider; unclear if; difficult to entirely exclude; exclude; correlate for;
        correlate clinically for; correlate with; clinical correlation for; suggestion of; concern
        is for; consideration include; consideration would include; diagnostic consideration;
        consideration
    """,
    Cue.HEDGE_BEFORE: """
        cannot be excluded; can not be excluded; not excluded; not be excluded; cannot be ruled
        out; not be entirely excluded; cannot be entirely excluded; cannot be completely excluded;
        is possible; not entirely excluded; not completely excluded; not ruled out; can't be
        excluded; are possible; is suspected; are suspected; is questioned; is a consideration;
        should be considered; may be present; is not entirely excluded; is not excluded; are not
        excluded; is questionable; could be present; might be present; not definitely excluded; be
        considered; is in the differential; is difficult to exclude; not well seen; not well
        visualized; would be a consideration; would be considered; not well demonstrated; is a
        possibility; are a possibility; less well seen
    """,
    Cue.HEDGE_BOTH: "versus; vs; as opposed to",
    Cue.PAST: "history of; known history of; prior history of; with history; patient history of",
    Cue.CHANGE: """
        change; interval change; increase; decrease; improvement; progression; resolution;
        worsening of; clearing; enlargement of; significant change; alteration; difference;
        interval increase; growth
    """,
    Cue.BREAK: """
        but; however; although; though; except; except for; aside from; other than; apart from;
        besides; with the exception of; with exception of; exception; which; yet; there is; there
        are; whereas; there has been; there have been; there was; while; nevertheless; despite;
        there remain; there again; there is again; who; because; otherwise than
    """,
    Cue.OR: "or; /",
    Cue.AND: "and; ,; as well as",
    Cue.WITH: "with",
    Cue.VERB: """
        is; are; was; were; has; have; appear; appears; remain; remains; persist; persists; look;
        be; has been; have been; show; shows; demonstrate; demonstrates; measure; is in; are in;
        being; overlie; project; terminate; is at; are at; lie
    """,
    Cue.SEEN: """
        seen; identified; visualized; noted; present; evident; appreciated; demonstrated;
        apparent; visible; detected; found; observed; visualised; recognized; clearly seen;
        definitely seen; well seen; clearly identified; clearly evident; definitely identified;
        redemonstrated; suggested; shown; clearly visualized; definitively seen; confirmed
    """,
    Cue.VIEW: """
        lateral; lateral view; the lateral; on the lateral; on lateral; on frontal; on the
        frontal; on the lateral view; on the frontal view; on lateral view; on frontal view; on
        the pa; on pa view; on the pa view
    """,
    Cue.DEGREE: """
        small; mild; mildly; minimal; moderate; moderately; large; severe; stable; unchanged;
        persistent; increased; decreased; tiny; trace; slight; slightly; the; a; patchy; stably;
        again; worsening; new; improved; improving; low; chronic; old; interval; multiple;
        minimally; scattered; streaky; linear
    """,
    Cue.NORMAL: """
        normal; within normal limit; unremarkable; clear; intact; wnl; normal limit; not enlarged;
        not dilated; not widened; sharp; not remarkable; within normal; non enlarged; nonenlarged;
        not significantly enlarged; not prominent; preserved; normal in size; normal size; not
        grossly enlarged; within limit; within limit of normal; limit of normal; not congested;
        negative chest; no enlargement; non dilated; are within; are within this; is within this;
        not definitely enlarged; not cardiomegaly; are unchanged and normal; within the limits of
        normal; without enlargement; not overtly enlarged
    """,
    Cue.LARGE: """
        enlarged; widened; wide; enlargement; prominent; widening; prominence; more prominent; is
        large; are large; slightly large; mildly large; moderately large; remain large; markedly
        large; very large; borderline; borderline in size; borderline size; borderline enlarged;
        borderline enlargement; borderline large; borderline prominent; borderline increased
    """,
    Cue.NEAR_NORMAL: """
        upper limit of normal; upper normal; top normal; at the upper limit; high normal; upper
        limit normal; upper limit; borderline normal; top normal size; upper limits for normal;
        near normal; low normal; the upper limit of normal
    """,
    Cue.OTHERWISE: "otherwise; remainder; remaining; rest; else",
    Cue.ABNORMALITY: """
        abnormality; disease; process; finding; pathology; abnormal finding; acute disease;
        illness; acute change
    """,
    Cue.NEUTRAL: """
        no change; not only; not changed; not significantly changed; no resolution; not resolved;
        no doubt; not cleared; not completely resolved; has not resolved; have not resolved;
        unresolved; no improvement; not entirely resolved; not optimally; compared; not improved;
        not included; not significantly improved; no significant change; no interval change; right
        away; mass effect; no comparison; density material; no prior; not available; no priors; no
        previous; left ventricular assist; no increase; heart rate; consistent; normal variant;
        bone density; density of the bone; bone mineral density; bony density; soft tissue
        density; normal variation; mid lung volume; line of sight; shift of the mediastinum; right
        heart border; left heart border; in line; lead to; chest pain; pleural line; clearly; no
        significant interval change; strongly suggestive of; most suggestive of; strongly suggest;
        previous exam; prior exam; prior study; previous study; prior examination; previous
        examination; prior radiograph; previous radiograph; prior chest radiograph; previous chest
        radiograph; prior film; last exam; last examination; last study; interval examination;
        hemithorax; recent exam; recent study; prior chest x ray; the study; study of; comparison
        exam; comparison study; monitor lead; ekg lead; ecg lead; telemetry lead; monitoring lead;
        external lead; internal
    """,
    Cue.LEFT: "left; lt; left sided; leftward; lingula; lingular",
    Cue.RIGHT: "right; rt; right sided; rightward; right middle lobe; rml; rll; rul",
    Cue.BOTH: """
        bilateral; bilaterally; both; bibasilar; biapical; bibasal; right and left; left and
        right; right greater than left; left greater than right; bi basilar; bi apical; both side;
        lul and rul; left more than right; right more than left; both lung base; biapically;
        bibasilarly; right larger than left; left larger than right; left or right; right or left
    """,
}
"""Cue -> phrases, separated by semicolons."""
