"""Reports made of labels, where nobody wrote one: a sentence for each finding.

    source.template: "{finding} in the chest X-ray."       findings that are present
    source.template: {present: "There is {finding}.", absent: "There is no {finding}.", none: ...}

A study without any finding has the sentence `none`; by default that of `present` about "No finding"
where absent findings are not named. Uncertain labels and blank ones say nothing, and a study with a
blank one has the sentence `none` only where its label `No Finding` says so.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.records import RawStudies, Study, Text
from medclip_dcl.data.source_settings import FINDING_FIELD, LABEL_KEY, SourceConfig

NO_FINDING = "No Finding"


class TemplateSentences(NamedTuple):
    """Sentences of a template, by finding; empty where nothing is said."""

    present: Mapping[str, str]
    absent: Mapping[str, str]
    none: str
    """Of a study without findings."""


def template_sentences(settings: SourceConfig) -> TemplateSentences:
    """Write the sentences of `source.template` for every one of `source.findings`."""
    given = settings.template
    forms = {"present": given} if isinstance(given, str) else dict(given)
    absent = forms.get("absent", "")
    none = forms.get("none", "" if absent else forms["present"])
    names = [name for name in settings.findings if name != NO_FINDING]
    return TemplateSentences(
        {name: _filled(forms["present"], name) for name in names},
        {name: _filled(absent, name) for name in names},
        _filled(none, "No finding"),
    )


def _filled(form: str, finding: str) -> str:
    sentence = form.replace(FINDING_FIELD, finding).strip()
    return f"{sentence}." if sentence and sentence[-1] not in ".!?" else sentence


def speak_labels(raw: RawStudies, settings: SourceConfig) -> RawStudies:
    """Give every labelled study with an image a report of template sentences.

    Raises:
        ConfigError: the source has reports, or no labels.
    """
    if raw.has_reports:
        raise ConfigError(
            "source.template makes reports of labels, and this source has reports; leave out the "
            "template, or the columns findings, impression and report"
        )
    if raw.labels is None:
        raise ConfigError(
            "source.template makes reports of labels, and there are none; name "
            "source.columns.labels, source.findings or source.labels"
        )
    said = template_sentences(settings)
    known = {
        name for name in raw.labels.column_names if raw.labels[name].null_count < len(raw.labels)
    }
    subject_of = {image.study_id: image.subject_id for image in raw.images}
    studies = [
        Study(row[LABEL_KEY], subject_of[row[LABEL_KEY]], Text(_report(row, known, said), "", ""))
        for row in raw.labels.to_pylist()
        if row[LABEL_KEY] in subject_of
    ]
    return replace(raw, studies=studies, has_reports=True)


def _report(labels: Mapping[str, int | None], known: Set[str], said: TemplateSentences) -> str:
    # `known`: findings that the source has labels of at all
    present = [text for name, text in said.present.items() if labels.get(name) == 1]
    absent = [text for name, text in said.absent.items() if labels.get(name) == 0 and text]
    is_none = labels.get(NO_FINDING) == 1 or all(
        labels.get(name) == 0 for name in known & said.present.keys()
    )
    none = [said.none] if said.none and is_none and not present else []
    return " ".join([*present, *none, *absent])
