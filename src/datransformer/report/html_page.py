"""A page of our own Markdown as one HTML file that needs nothing else: its pictures are inside, nothing is loaded."""

import base64
import re
from collections.abc import Mapping

from markdown_it import MarkdownIt
from markdown_it.token import Token

from datransformer.report.page import framed

# All HTML that our Markdown has. Another tag can only have come from a file, and is shown as it is.
OURS = re.compile(r"</?u>|<details><summary>[^<>]*</summary>|</details>")
REGION = '<div class="scroll" tabindex="0" role="region" aria-label="Table">'


def html_page(markdown: str, pictures: Mapping[str, bytes]) -> str:
    """The whole page in HTML.

    Args:
        markdown: As `datransformer.report.results.results_page` writes it; its first line is the title.
        pictures: PNG files by the address that the Markdown gives them.
    """
    parser = MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(markdown)
    for token in tokens:
        for one in (token, *(token.children or ())):
            _prepare(one, pictures)
    content = str(parser.renderer.render(tokens, parser.options, {}))
    content = content.replace("<table>", f"{REGION}<table>").replace("</table>", "</table></div>")
    return framed(markdown.partition("\n")[0].removeprefix("# "), content)


def _prepare(token: Token, pictures: Mapping[str, bytes]) -> None:
    """Make text of what is not our HTML, classes of the styles that the policy forbids, and put a picture in."""
    if token.type in ("html_inline", "html_block") and not OURS.fullmatch(token.content.strip()):
        token.type = "text"
    if token.type in ("th_open", "td_open") and token.attrs.pop("style", None) is None:
        token.attrs["class"] = "words"
    if token.type == "th_open":
        token.attrs["scope"] = "col"
    if token.type == "image":
        picture = base64.b64encode(pictures[str(token.attrs["src"])]).decode()
        token.attrs["src"] = f"data:image/png;base64,{picture}"
