/**
 * The name of a model version: a directory name, a segment of a URL, and a string in every answer.
 *
 * A version is a positive integer in its one plain decimal form, at most 2^53 - 1, so that each version has exactly one name
 * and versions order as numbers. `0`, `01`, `-1`, `1.0` and `v1` are not versions.
 */

/** Without the bound; without flags, since it also stands in published JSON Schemas. */
export const VERSION_NAME_PATTERN = /^[1-9][0-9]{0,15}$/;

export function isVersionName(text: string): boolean {
  return VERSION_NAME_PATTERN.test(text) && Number.isSafeInteger(Number(text));
}

/** Order of two version names, the lower one first. */
export function compareVersionNames(a: string, b: string): number {
  return Number(a) - Number(b);
}
