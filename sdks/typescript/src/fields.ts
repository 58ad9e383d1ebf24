/**
 * Fields of JSON objects, by their types.
 *
 * A later version of the service may return more: a value of an unexpected type counts as absent.
 */

export type Fields = Readonly<Record<string, unknown>>;

const RFC_3339 = /^(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}:\d{2})(?:\.(\d+))?(?:[Zz]|([+-])(\d{2}):(\d{2}))$/;

export function isFields(value: unknown): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function text(fields: Fields, name: string): string {
  return textOrNull(fields, name) ?? "";
}

/** Null if it is empty, too. */
export function textOrNull(fields: Fields, name: string): string | null {
  const value = fields[name];
  return typeof value === "string" && value !== "" ? value : null;
}

export function texts(fields: Fields, name: string): string[] {
  const value = fields[name];
  return Array.isArray(value) ? value.filter((one): one is string => typeof one === "string") : [];
}

export function integerOrNull(fields: Fields, name: string): number | null {
  const value = fields[name];
  return Number.isInteger(value) ? (value as number) : null;
}

export function objects(fields: Fields, name: string): Fields[] {
  const value = fields[name];
  return Array.isArray(value) ? value.filter(isFields) : [];
}

export function textsByName(fields: Fields, name: string): Record<string, string> {
  const value = fields[name];
  const pairs = isFields(value) ? Object.entries(value) : [];
  return Object.fromEntries(pairs.filter((pair): pair is [string, string] => typeof pair[1] === "string"));
}

/** A time of RFC 3339, or null if it is absent or something else. */
export function timeOrNull(fields: Fields, name: string): Date | null {
  const match = RFC_3339.exec(text(fields, name));
  if (match === null) {
    return null;
  }
  const [, day = "", time = "", fraction = "", sign, hours = "0", minutes = "0"] = match;
  const local = new Date(`${day}T${time}.${fraction.slice(0, 3).padEnd(3, "0")}Z`);
  // A day that does not exist, such as 30 February, is read as another.
  if (Number.isNaN(local.getTime()) || !local.toISOString().startsWith(`${day}T${time}`)) {
    return null;
  }
  const offset = (Number(hours) * 60 + Number(minutes)) * 60_000;
  return new Date(local.getTime() - (sign === "-" ? -offset : offset));
}
