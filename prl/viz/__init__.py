"""Pictures and HTML of plain data (`prl.types`, `prl.frames`): no pyplot, no script, nothing loaded from elsewhere."""

from prl.viz.html import Html
from prl.viz.plots import group_advantages, history
from prl.viz.text import token_text
from prl.viz.tokens_html import token_html

__all__ = ["Html", "group_advantages", "history", "token_html", "token_text"]
