"""The style sheet of a report: light, dark and print, wide screens and phones."""

from __future__ import annotations

# Each pair is a name with its colour on light and on dark ground. Texts keep a contrast of 4.5 or
# more to what they stand on; a test computes it.
COLOURS = {
    "page": ("#f7f6f2", "#0f1115"),
    "card": ("#ffffff", "#15171c"),
    "ink": ("#1c1f26", "#e8eaee"),
    "soft": ("#565d6b", "#a6adba"),
    "line": ("#dedbd2", "#2e333d"),
    "tint": ("#f1efe9", "#1d2027"),
    "good": ("#00603a", "#5fd6a5"),
    "goodbg": ("#e5f4ec", "#12291f"),
    "bad": ("#a61b11", "#ff9a8c"),
    "badbg": ("#fdebe9", "#33191a"),
    "open": ("#704d00", "#f0c766"),
    "openbg": ("#fdf3dc", "#2d2512"),
    "link": ("#0a5a94", "#7cc0f5"),
    "brass": ("#85590f", "#d8a94f"),
}
# Which texts stand on which grounds.
TEXTS = {
    "page": ("ink", "soft", "link", "brass"),
    "card": ("ink", "soft", "link", "good", "bad", "open"),
    "tint": ("ink", "soft"),
    "goodbg": ("ink", "good"),
    "badbg": ("ink", "bad"),
    "openbg": ("ink", "open"),
}

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-padding-top:12px}
body{margin:0;background:var(--page);color:var(--ink);overflow-wrap:anywhere;
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
header,main,footer{max-width:1180px;margin:0 auto;padding:0 24px}
header{padding-top:30px}
a{color:var(--link);text-underline-offset:2px}
.skip{position:absolute;left:-9999px}.skip:focus{left:12px;top:8px;background:var(--card);
padding:8px 12px;border:2px solid var(--link);border-radius:8px;z-index:9}
.brand{display:flex;align-items:center;gap:8px;color:var(--brass);font-weight:600;
font-size:.86rem;letter-spacing:.03em;margin:0 0 10px}
.brand svg{width:26px;height:26px;color:var(--soft)}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 6px;letter-spacing:-.015em}
h2{font-size:1.28rem;margin:40px 0 12px;letter-spacing:-.005em}
h3{font-size:1.02rem;margin:22px 0 8px}
.lead{color:var(--soft);margin:0 0 16px;max-width:80ch}
.why{max-width:80ch;margin:8px 0}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 20px;padding:0;
font-size:.9rem}
.verdicts{list-style:none;margin:0;padding:0;display:grid;gap:8px}
.verdicts li{padding:10px 14px;border-radius:8px;border-left-width:4px;border-left-style:solid;
display:grid;grid-template-columns:11em 1fr;
gap:4px 14px}
.verdicts b{font-weight:650}
.good{background:var(--goodbg);border-color:var(--good)}.good b,.w-good{color:var(--good)}
.bad{background:var(--badbg);border-color:var(--bad)}.bad b,.w-bad{color:var(--bad)}
.open{background:var(--openbg);border-color:var(--open)}.open b,.w-open{color:var(--open)}
.quiet{background:var(--tint);border-color:var(--line)}.quiet b{color:var(--soft)}
.w-good,.w-bad,.w-open{font-weight:650;white-space:nowrap}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px;
margin:12px 0;position:relative;width:fit-content;max-width:100%;min-width:min(100%,30rem)}
figure .scroll{width:auto}details .scroll{min-width:0}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:10px 14px;color:var(--soft);font-size:.88rem}
th,td{padding:8px 14px;text-align:left;border-top:1px solid var(--line);vertical-align:top;
overflow-wrap:break-word}
thead th{background:var(--tint);font-weight:600;vertical-align:bottom}
th small,td small{display:block;font-weight:400;color:var(--soft);font-size:.88em}
thead small{min-width:8em;line-height:1.35}
td small{white-space:nowrap}
td.n{text-align:right;white-space:nowrap}thead th.n{text-align:right}
tbody th{font-weight:600;background:var(--card);position:sticky;left:0;min-width:8.5em}
th.s{white-space:nowrap}
thead th:first-child{position:sticky;left:0;z-index:1}
td p{margin:0}
.best{font-weight:700}.best::before{content:"★ ";color:var(--brass)}
.sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:14px 20px;
margin:12px 0;padding:14px;border:1px solid var(--line);border-radius:10px;background:var(--card)}
dl.wide{grid-template-columns:1fr}
dt{color:var(--soft);font-size:.82rem}dd{margin:0}
code,pre,.mono dd{font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;
font-size:.86rem}
pre{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px;
overflow-x:auto;margin:12px 0;overflow-wrap:normal}
figure{margin:14px 0;min-width:0}
figure .scroll{margin:0 0 6px}
figure svg{display:block;width:100%;height:auto}
figure.wide svg{min-width:900px}
figure.chart{max-width:560px}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));
gap:0 20px;align-items:start}
.grid.two{grid-template-columns:repeat(auto-fill,minmax(min(100%,480px),1fr))}
figcaption{color:var(--soft);font-size:.88rem}
details{margin:8px 0}summary{cursor:pointer;color:var(--link);padding:3px 0;font-size:.92rem}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--bad);
border-radius:10px;padding:12px 16px;margin:12px 0}
article h3{font-size:1rem;margin:0}article p{margin:4px 0}
.note,footer{color:var(--soft);font-size:.88rem}
footer{padding:36px 24px 48px}
@media (max-width:640px){h1{font-size:1.45rem}header,main,footer{padding-left:14px;
padding-right:14px}header{padding-top:18px}th,td{padding:8px 10px}
dl{grid-template-columns:1fr 1fr}dl.wide{grid-template-columns:1fr}
.verdicts li{grid-template-columns:1fr}figure.chart{max-width:none}
tbody th{min-width:6.5em}th.s{white-space:normal}}
@media print{body{font-size:10.5pt;background:#fff}header,main,footer{max-width:none;padding:0}
nav,.skip{display:none}.scroll,pre{overflow:visible}pre{white-space:pre-wrap}
figure.wide svg{min-width:0}.grid{grid-template-columns:1fr 1fr}
details::details-content{content-visibility:visible;block-size:auto;display:block}
details.data{display:none}summary{list-style:none;color:var(--soft)}
tbody th,thead th:first-child{position:static}
table{font-size:8.5pt}th,td{padding:4px 6px}thead small,td small{white-space:normal}
tr,figure,article,.verdicts li{break-inside:avoid}h2,h3,caption{break-after:avoid}}
"""


def style() -> str:
    """The whole sheet; on paper the light colours stay, whatever the screen has."""
    light = ";".join(f"--{name}:{pair[0]}" for name, pair in COLOURS.items())
    dark = ";".join(f"--{name}:{pair[1]}" for name, pair in COLOURS.items())
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"@media print{{:root{{color-scheme:light}}}}{_RULES}"
    )
