"""Settings of the report page and of the cards."""

from medclip_dcl.core.settings import Section


class CardConfig(Section):
    """Words of the model card and the data card (`write_cards`)."""

    intended_use: str = ""
    """Who may use the model for what. Without it, limits and licence, nothing is published."""
    limits: tuple[str, ...] = ()
    """What the model cannot do and was not tried on, one sentence each; those that hold of every
    model are added."""
    licence: str = ""
    """Terms of the model: an SPDX identifier such as `mit`, or words. Derived from reports and
    images, it stays bound by theirs."""
    data: str = ""
    """Where images and reports come from, and under which terms."""

    def missing(self) -> list[str]:
        """Name the empty settings without which a model is not published."""
        named = {
            "intended_use": self.intended_use,
            "limits": "".join(self.limits),
            "licence": self.licence,
        }
        return [f"card.{name}" for name, text in named.items() if not text.strip()]


class ReportConfig(Section):
    """The HTML report (`write_report`)."""

    private: bool = False
    """Leave out every text and picture."""
