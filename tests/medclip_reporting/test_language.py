import pytest

from medclip_reporting.language import count_foreign, is_foreign


@pytest.mark.parametrize(
    "text",
    [
        "Kein Pleuraerguss, Herz nicht vergrößert.",
        "Pas de pneumothorax. Le coeur est normal.",
        "Sin derrame pleural. No se observa consolidación con las placas.",
        "Сердце не увеличено.",
        "未见胸腔积液。",
    ],
)
def test_other_languages_are_seen(text: str) -> None:
    assert is_foreign(text)


@pytest.mark.parametrize(
    "text",
    [
        "No pleural effusion. The heart is not enlarged.",
        "Lungs clear. Heart size normal.",
        "Seen by Dr. van der Berg. No change.",
        "",
    ],
)
def test_english_is_not_taken_for_another(text: str) -> None:
    assert not is_foreign(text)


def test_reports_are_counted() -> None:
    assert count_foreign(["Kein Erguss, ist nicht links.", "No effusion."]) == 1
