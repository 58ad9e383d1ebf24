"use strict";

// The calculator of howto/sizing.md. Its constants are those of bench/figures.json, which the page brings along; the
// same assumptions are explained in internals/scaling.md. A KB is 1,000 bytes.

const BODY_KB = 30; // the message whose body was measured
const GB_KB = 1e6;

function sizing(figures, given) {
  const figure = (name) => Number(figures[name].replaceAll(",", ""));
  const perSecond = given.messages / 86400;
  const peakPerSecond = perSecond * figure("sizing.peak");
  const unsignedUs = given.isSigned ? 0 : figure("deliver.signatures");
  const busyCores = (perSecond * (figure("scaling.sum") - unsignedUs)) / 1e6;
  const cores = Math.max(1, Math.ceil((busyCores * figure("sizing.peak")) / (figure("sizing.busy") / 100)));
  const bodyKb = (given.kilobytes * figure("bodies.stored")) / BODY_KB;
  // Bodies are kept until the end of the day, and then for as long as they are set to.
  const bodyDays = Math.min(given.bodyDays + 1, given.days);
  const rowsGb = (given.messages * figure("sizing.rows") * given.days) / GB_KB;
  const bodiesGb = (given.messages * bodyKb * bodyDays) / GB_KB;
  const databaseGb = rowsGb + bodiesGb;
  const diskGb = databaseGb * (1 + figure("sizing.free") / 100) + figure("sizing.system");
  const usd = cores * figure("sizing.core_usd") + diskGb * figure("sizing.gb_usd");
  return {
    perSecond,
    peakPerSecond,
    cores,
    rowsGb,
    bodiesGb,
    databaseGb,
    diskGb,
    walGb: (given.messages * (figure("sizing.wal_rows") + bodyKb)) / GB_KB,
    restoreHours: (databaseGb * 1000) / figure("sizing.restore") / 3600,
    deliveryProcesses: Math.max(1, Math.ceil((peakPerSecond * (figure("deliver.delivery") - unsignedUs)) / 1e6)),
    usd,
    usdPerMillion: usd / ((given.messages * 30) / 1e6),
  };
}

function advice(result) {
  const parts = [];
  if (result.deliveryProcesses > 1) {
    parts.push(
      "Split it: PostgreSQL with a standby, three NATS servers, HTTP and delivery on two or more machines with " +
        `${result.deliveryProcesses} delivery processes.`,
    );
  } else if (result.cores > 1) {
    parts.push("One machine: posthouse run --processes 2, the stream in memory. A standby on a second machine survives its loss.");
  } else {
    parts.push("One small machine: posthouse run and PostgreSQL, the stream in memory.");
  }
  if (result.restoreHours > 4.5) {
    parts.push("A restore of this PostgreSQL takes too long for most: keep messages for fewer days.");
  }
  return parts.join(" ");
}

function amount(number) {
  const digits = number >= 10 ? 0 : number >= 1 ? 1 : 2;
  return number.toLocaleString("en", { maximumFractionDigits: digits });
}

function gigabytes(number) {
  return number >= 1000 ? `${amount(number / 1000)} TB` : `${amount(number)} GB`;
}

function duration(hours) {
  const minutes = hours * 60;
  return minutes < 1 ? "under a minute" : minutes < 60 ? `${Math.round(minutes)} minutes` : `${amount(hours)} hours`;
}

function rows(result) {
  return [
    ["Messages per second, average and peak", `${amount(result.perSecond)}, ${amount(result.peakPerSecond)}`],
    ["Processor cores", amount(result.cores)],
    ["PostgreSQL", `${gigabytes(result.databaseGb)}: ${gigabytes(result.rowsGb)} of rows, ${gigabytes(result.bodiesGb)} of content`],
    ["Disk", gigabytes(result.diskGb)],
    ["Write-ahead log, and so backup, per day", gigabytes(result.walGb)],
    ["A full backup, before compression", gigabytes(result.databaseGb)],
    ["Restore, or a new standby", duration(result.restoreHours)],
    ["Machines", advice(result)],
    ["Rent of these cores and this disk", `${amount(result.usd)} USD a month, ${amount(result.usdPerMillion)} USD a million`],
  ];
}

const INPUTS = [
  ["messages", "Messages per day", 1000000, 1],
  ["kilobytes", "Average size in KB", 30, 0.1],
  ["days", "Days that messages are kept", 30, 1],
  ["bodyDays", "Days that their content is kept", 3, 0],
];

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function mount(place) {
  const figures = JSON.parse(place.dataset.figures);
  const fields = INPUTS.map(([name, text, value, min]) => {
    const input = element("input", { type: "number", name, value, min, step: "any", required: true });
    return element("label", {}, text, input);
  });
  const signed = element("input", { type: "checkbox", name: "isSigned", checked: true });
  const form = element("form", {}, ...fields, element("label", {}, signed, "Signed with DKIM"));
  const output = element("div", { ariaLive: "polite" });
  const show = () => {
    if (!form.checkValidity()) {
      return;
    }
    const given = { isSigned: signed.checked };
    for (const [name] of INPUTS) {
      given[name] = Number(form.elements[name].value);
    }
    const lines = rows(sizing(figures, given)).map(([text, value]) =>
      element("tr", {}, element("th", { scope: "row" }, text), element("td", {}, value)),
    );
    output.replaceChildren(element("table", {}, element("tbody", {}, ...lines)));
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  place.replaceChildren(form, output);
  show();
}

if (typeof document !== "undefined") {
  const place = document.getElementById("sizing");
  if (place) {
    mount(place);
  }
}
