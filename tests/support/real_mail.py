"""HTML as shops, booking sites and newsletters send it. `TRAP` is a listener's address, which must see nothing."""

# ruff: noqa: E501 (mail has long lines)

from typing import Final

_PIXEL: Final = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M/wHwAEBgIApD5fRAAAAABJRU5ErkJggg=="

MAILS: Final = {
    "receipt with JSON-LD": """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Your receipt</title>
<script type="application/ld+json">
{"@context": "http://schema.org", "@type": "Order", "orderNumber": "1042", "merchant": {"@type": "Organization", "name": "Shop <b>"},
 "acceptedOffer": [{"@type": "Offer", "price": "12.00", "priceCurrency": "EUR", "itemOffered": {"@type": "Product", "name": "Tea", "image": "TRAP/tea.png"}}]}
</script>
<style>body { margin: 0; background: #f4f4f7; font-family: Helvetica, Arial, sans-serif } .card { background: #fff; border-radius: 6px }
td.sum { border-top: 2px solid #333; font-weight: bold }</style></head>
<body><table width="100%" cellpadding="0" cellspacing="0"><tr><td align="center">
<table class="card" width="560" cellpadding="24"><tr><td><h1>Thank you, Ada</h1><p>Order 1042 is on its way.</p>
<table width="100%"><tr><td>Tea, 100 g</td><td align="right">12.00</td></tr><tr><td>Postage</td><td align="right">3.90</td></tr>
<tr><td class="sum">Total</td><td class="sum" align="right">15.90</td></tr></table></td></tr></table></td></tr></table>
<img src="TRAP/open.gif" width="1" height="1" alt=""></body></html>""",
    "booking": """<html><head><meta http-equiv="Content-Type" content="text/html; charset=utf-8" />
<style type="text/css">.btn { background: #0b66c3; color: #fff; padding: 12px 24px; text-decoration: none; display: inline-block }</style></head>
<body bgcolor="#ffffff"><div itemscope itemtype="http://schema.org/LodgingReservation"><meta itemprop="reservationNumber" content="XK-77"/>
<link itemprop="reservationStatus" href="http://schema.org/ReservationConfirmed"/><div itemprop="reservationFor" itemscope itemtype="http://schema.org/Hotel">
<meta itemprop="name" content="Harbour"/><h2>Hotel Harbour is booked</h2></div></div>
<script type="application/ld+json">[{"@type": "EventReservation", "name": "Two nights"}]</script>
<table border="1" cellpadding="8"><tr><th>Arrival</th><th>Departure</th><th>Guests</th></tr><tr><td>3 May</td><td>5 May</td><td>2</td></tr></table>
<p><a class="btn" href="https://hotel.example/b/XK-77">Change your booking</a></p></body></html>""",
    "dark-mode CSS": """<!DOCTYPE html><html><head><meta name="color-scheme" content="light dark"><meta name="supported-color-schemes" content="light dark">
<style>:root { supported-color-schemes: light dark } body { background-color: #fafafa; color: #222; font: 16px/1.6 Arial }
.panel { background: #fff; border: 1px solid #ddd; padding: 20px; max-width: 480px; margin: 24px auto }
@media (prefers-color-scheme: dark) { body { background: #111 !important; color: #eee !important } .panel { background: #222 !important } }
[data-ogsc] .panel { background: #222 }</style></head>
<body><div class="panel"><h3>Sign in from a new device</h3><p>Code: <strong style="font-size:28px;letter-spacing:6px">482 913</strong></p>
<p>If it wasn't you, change your password.</p></div></body></html>""",
    "MSO conditionals": """<!doctype html><html xmlns="http://www.w3.org/1999/xhtml" xmlns:v="urn:schemas-microsoft-com:vml" xmlns:o="urn:schemas-microsoft-com:office:office"><head>
<!--[if gte mso 9]><xml><o:OfficeDocumentSettings><o:AllowPNG/><o:PixelsPerInch>96</o:PixelsPerInch></o:OfficeDocumentSettings></xml><meta name="mso"><![endif]-->
<!--[if !mso]><!--><meta http-equiv="X-UA-Compatible" content="IE=edge"><link href="TRAP/font.css" rel="stylesheet"><!--<![endif]-->
<style>#outlook a { padding: 0 } body { margin: 0 } .col { display: inline-block; width: 250px; vertical-align: top }</style>
<!--[if mso]><style>.col { width: 100% }</style><script>x()</script><![endif]--></head><body style="background:#eef">
<!--[if mso]><table width="600"><tr><td width="300"><![endif]--><div class="col" style="background:#fff"><p>Left column</p></div>
<!--[if mso]></td><td width="300"><![endif]--><div class="col" style="background:#fed"><p>Right column</p></div><!--[if mso]></td></tr></table><![endif]-->
<div><!--[if mso]><v:roundrect href="https://a.example" arcsize="10%"><center>Open</center></v:roundrect><![endif]-->
<![if !mso]><a href="https://a.example" style="background:#333;color:#fff;padding:10px">Open</a><![endif]></div></body></html>""",
    "nested tables": """<html><head><link rel="preconnect" href="TRAP"><base href="TRAP/"></head>
<body marginwidth="0" topmargin="0"><center><table width="100%" bgcolor="#dfe7ef"><tr><td><table align="center" width="600" bgcolor="#ffffff" cellpadding="0"><tr><td height="8" bgcolor="#c00"></td></tr>
<tr><td style="padding:20px"><table width="100%"><tr><td width="50%" valign="top"><table border="0"><tr><td><font face="Georgia" size="5">Issue 12</font></td></tr><tr><td>Three stories of the week.</td></tr></table></td>
<td width="50%" valign="top"><table border="0" bgcolor="#eee"><tr><td>One</td></tr><tr><td>Two</td></tr><tr><td>Three</td></tr></table></td></tr></table></td></tr>
<tr><td align="center"><small><a href="unsubscribe">Unsubscribe</a></small></td></tr></table></td></tr></table></center></body></html>""",
    "child selectors": """<!doctype html><html><head><meta charset="utf-8"><link rel="icon" href="TRAP/i.png"><meta name="x-apple-disable-message-reformatting">
<style>html, body { margin: 0; height: 100% } body > table { width: 100%; background: #fff } body > table > tbody > tr:first-child > td { background: #234; color: #fff; padding: 30px }
head + body > div:last-child { background: #cfc; padding: 12px } p:first-child { font-weight: bold }</style></head>
<body><table><tr><td>Head</td></tr><tr><td><p>First</p><p>Second</p></td></tr></table><div>Foot</div></body></html>""",
    "web fonts": """<!doctype html><html><head><link rel="preconnect" href="TRAP"><link href="TRAP/css2?family=Inter:wght@400;700&display=swap" rel="stylesheet">
<style>@import url("TRAP/more.css"); @font-face { font-family: "Brand"; src: url(TRAP/brand.woff2) format("woff2") }
body { font-family: "Inter", Verdana, sans-serif } h1 { font-family: "Brand", Georgia, serif; font-size: 34px }</style></head>
<body><h1>Welcome aboard</h1><p>Your trial lasts 14 days.</p><ul><li>Invite your team<li>Add your domain</ul></body></html>""",
    "data images": f"""<html><head><meta charset="utf-8"></head><body style="margin:0"><div style="background:url({_PIXEL}) #eee;height:60px"></div>
<img src="{_PIXEL}" width="200" height="80" alt="Logo" title="a > b <script>"><p style="background-image:url('{_PIXEL}');padding:9px">Striped</p>
<svg width="120" height="40"><title>Chart</title><rect width="80" height="20" fill="teal"/></svg><hr noshade><pre>total:   3
paid:    3</pre></body></html>""",
    "right to left": """<!doctype html><html dir="rtl" lang="he"><head><meta charset="utf-8"><title>קבלה</title></head>
<body style="font-family:Arial;text-align:right"><h2>תודה על ההזמנה</h2><table dir="rtl" width="400" border="1"><tr><th>פריט</th><th>מחיר</th></tr><tr><td>תה ירוק</td><td>12 ₪</td></tr></table>
<p>מספר: <bdo dir="ltr">A-1042</bdo></p><script>document.write("x")</script><noscript><p>ללא סקריפט</p></noscript></body></html>""",
    "plain": """<p>Hello Ada,</p><p>your password was changed at 18:33.<br>If it wasn't you: <a href="https://a.example/reset">reset it</a>.</p>
<blockquote type="cite">1 &lt; 2 and a < b & c</blockquote><p>-- <br><em>The team</em>""",
}  # fmt: skip


def mails(trap: str) -> dict[str, str]:
    return {name: html.replace("TRAP", trap) for name, html in MAILS.items()}
