/**
 * A number of bytes as people write it: `67108864`, "64MiB", "1.5 GB", "512".
 *
 * Invariant: a parsed size is a whole, safe number of bytes; a fraction that does not come out whole is refused, never rounded.
 */

const UNITS: ReadonlyMap<string, number> = new Map([
	["", 1],
	["b", 1],
	["kb", 1e3],
	["mb", 1e6],
	["gb", 1e9],
	["tb", 1e12],
	["kib", 2 ** 10],
	["mib", 2 ** 20],
	["gib", 2 ** 30],
	["tib", 2 ** 40],
]);

/** What a size looks like, as a regular expression without flags (it also stands in the published JSON Schema). */
export const SIZE_PATTERN =
	/^[0-9]+(\.[0-9]+)? ?([KkMmGgTt]?[Bb]|[KkMmGgTt][Ii][Bb])?$/;

/** For messages: what is accepted. */
export const SIZE_FORMS =
	'a number of bytes or a string such as "64MiB" or "1.5GB"';

/** @returns bytes, or undefined when the text is not a size that comes out as a whole, safe number of bytes. */
export function parseSizeBytes(text: string): number | undefined {
	if (text.length > 32 || !SIZE_PATTERN.test(text)) {
		return undefined;
	}
	const unitAt = text.search(/[^0-9.]/);
	const digits = unitAt === -1 ? text : text.slice(0, unitAt);
	const unit = unitAt === -1 ? "" : text.slice(unitAt).trim().toLowerCase();
	const sizeBytes = Number(digits) * UNITS.get(unit)!;
	return Number.isSafeInteger(sizeBytes) ? sizeBytes : undefined;
}

/** The shortest exact form: whole binary units where they fit ("64MiB"), else the number of bytes ("1000 bytes"). */
export function formatSizeBytes(sizeBytes: number): string {
	for (const unit of ["TiB", "GiB", "MiB", "KiB"]) {
		const scale = UNITS.get(unit.toLowerCase())!;
		if (sizeBytes >= scale && sizeBytes % scale === 0) {
			return `${sizeBytes / scale}${unit}`;
		}
	}
	return `${sizeBytes} bytes`;
}
