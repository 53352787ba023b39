"""Words that decide what a report says of a finding: our own lists, as data.

Each cue stands for what it does, and the reading rules know only that.
Where two cues begin at one word the longer wins, which is how "clear of"
is a negation and "clear" is none.
"""

from enum import Enum, auto


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
    """Leaves what follows open, negated or not: "to exclude", "cannot rule out"."""
    HEDGE = auto()
    """Leaves what follows open: "may represent", "possible"."""
    HEDGE_BEFORE = auto()
    """Leaves what comes before open: "is possible"."""
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
        no; without; negative; negative for; free of; clear of; absence of; lack of; deny;
        neither; nor; resolution of; clearing of; removal of; rather than; no evidence of; no
        evidence for; no evidence to suggest; no sign of; no definite; no convincing; no
        suspicious; no concerning; no suspected; not suggestive of
    """,
    Cue.NOT: """
        not; cannot; can not; no longer; never; nothing; isn't; aren't; wasn't; hasn't; can't;
        couldn't; doesn't; don't
    """,
    Cue.DENY_BEFORE: """
        resolved; cleared; removed; absent; disappeared; unlikely; less likely; none
    """,
    Cue.EXCLUDED: "excluded; ruled out",
    Cue.HEDGE: """
        may; might; could; possible; possibly; possibility of; perhaps; potential; potentially;
        presumed; suggest; suggesting; suggestive of; suggestion of; suspect; suspected;
        suspicious for; suspicion for; suspicion of; concern for; concerning for; concern is for;
        worrisome for; question; questionable; question of; ?; equivocal; indeterminate;
        differential; differential diagnosis; consider; consideration; whether; if; either;
        evaluate for; evaluation for; assess for; correlate for; correlate with; correlate
        clinically for; clinical correlation for
    """,
    Cue.EXCLUDE: "exclude; rule out; excluding; ruling out",
    Cue.HEDGE_BEFORE: """
        is possible; are possible; may be present; could be present; might be present; is
        suspected; are suspected; is questioned; is questionable; is a possibility; is a
        consideration; be considered; would be a consideration; in the differential; not well
        seen; not well visualized; not well demonstrated; less well seen; difficult to exclude
    """,
    Cue.HEDGE_BOTH: "versus; vs; as opposed to",
    Cue.PAST: "history of; with history",
    Cue.CHANGE: """
        change; increase; decrease; improvement; progression; resolution; clearing; alteration;
        difference; growth; worsening of; enlargement of
    """,
    Cue.BREAK: """
        but; however; although; though; except; exception; with the exception of; with exception
        of; aside from; other than; apart from; besides; which; who; yet; whereas; while; because;
        despite; nevertheless; there is; there are; there was; there remain; there has been; there
        have been
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
        suggested; shown; confirmed
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
        resolved; incompletely resolved; nearly resolved; strongly suggest; strongly suggestive
        of; most suggestive of; compared; consistent; normal variant; normal variation; right
        away; in line; line of sight; lead to; heart rate; chest pain; mass effect; hemithorax;
        bone density; density of the bone; bone mineral density; bony density; soft tissue
        density; right heart border; left heart border; shift of the mediastinum; monitor lead;
        monitoring lead; external lead; telemetry lead; ekg lead; ecg lead; chest cavity; pleural
        cavity; thoracic cavity; abdominal cavity; peritoneal cavity; prior exam; prior
        examination; prior study; prior radiograph; prior film; prior chest radiograph; prior
        chest x ray; previous exam; previous examination; previous study; previous radiograph;
        previous film; previous chest radiograph; previous chest x ray; last exam; last
        examination; last study; last radiograph; last film; last chest radiograph; last chest x
        ray; recent exam; recent examination; recent study; recent radiograph; recent film; recent
        chest radiograph; recent chest x ray; comparison exam; comparison examination; comparison
        study; comparison radiograph; comparison film; comparison chest radiograph; comparison
        chest x ray
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
