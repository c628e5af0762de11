/**
 * JSON with exact integers.
 *
 * `parseJson` gives what JSON.parse gives, except that an integer which a number cannot hold becomes a bigint, and that `NaN`, `Infinity` and
 * `-Infinity` are taken as numbers, since some servers write them. JSON.parse, being much faster, does the work unless the text can hold one of
 * these. Depth is bounded by `DEPTH_MAX`.
 */

const DEPTH_MAX = 100;

/** Finds an integer of 16 or more digits (2^53 has 16) or a non-finite number. A match inside a string merely costs time. */
const NEEDS_EXACT = /(?:^|[[,:\s])-?(?:\d{16,}\s*(?:[,\]}]|$)|NaN|Inf)/;

const NUMBER = /-?(?:(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|Infinity)|NaN/y;
const SPACE = /[ \t\n\r]*/y;

/** @throws SyntaxError when the text is not JSON. */
export function parseJson(text: string): unknown {
  return NEEDS_EXACT.test(text) ? new ExactParser(text).parse() : JSON.parse(text);
}

class ExactParser {
  private readonly text: string;
  private at = 0;

  constructor(text: string) {
    this.text = text;
  }

  parse(): unknown {
    const value = this.value(0);
    this.skipSpace();
    if (this.at < this.text.length) this.fail();
    return value;
  }

  private value(depth: number): unknown {
    if (depth > DEPTH_MAX) throw new SyntaxError(`JSON is nested more than ${DEPTH_MAX} deep`);
    this.skipSpace();
    switch (this.text[this.at]) {
      case '{':
        return this.object(depth);
      case '[':
        return this.array(depth);
      case '"':
        return this.string();
      case 't':
        return this.word('true', true);
      case 'f':
        return this.word('false', false);
      case 'n':
        return this.word('null', null);
      default:
        return this.number();
    }
  }

  /** Without a prototype, so that no key has a meaning of its own. */
  private object(depth: number): Record<string, unknown> {
    const result: Record<string, unknown> = Object.create(null);
    this.at++;
    if (this.take('}')) return result;
    do {
      this.skipSpace();
      const key = this.string();
      if (!this.take(':')) this.fail();
      result[key] = this.value(depth + 1);
    } while (this.take(','));
    if (!this.take('}')) this.fail();
    return result;
  }

  private array(depth: number): unknown[] {
    const result: unknown[] = [];
    this.at++;
    if (this.take(']')) return result;
    do result.push(this.value(depth + 1));
    while (this.take(','));
    if (!this.take(']')) this.fail();
    return result;
  }

  private string(): string {
    if (this.text[this.at] !== '"') this.fail();
    let end = this.at;
    do {
      end = this.text.indexOf('"', end + 1);
      if (end < 0) this.fail();
    } while (this.isEscaped(end));
    const token = this.text.slice(this.at, end + 1);
    this.at = end + 1;
    // JSON.parse knows the escapes, and refuses wrong ones and control characters.
    return JSON.parse(token) as string;
  }

  /** Whether an odd number of backslashes stands before. */
  private isEscaped(at: number): boolean {
    let backslashes = 0;
    while (this.text[at - 1 - backslashes] === '\\') backslashes++;
    return backslashes % 2 === 1;
  }

  private number(): number | bigint {
    NUMBER.lastIndex = this.at;
    const token = NUMBER.exec(this.text)?.[0];
    if (token === undefined) this.fail();
    this.at = NUMBER.lastIndex;
    const value = Number(token);
    return Number.isSafeInteger(value) || !/^-?\d+$/.test(token) ? value : BigInt(token);
  }

  private word<T>(word: string, value: T): T {
    if (!this.text.startsWith(word, this.at)) this.fail();
    this.at += word.length;
    return value;
  }

  /** Takes a character after white space, if it is next. */
  private take(character: string): boolean {
    this.skipSpace();
    if (this.text[this.at] !== character) return false;
    this.at++;
    return true;
  }

  private skipSpace(): void {
    SPACE.lastIndex = this.at;
    SPACE.test(this.text);
    this.at = SPACE.lastIndex;
  }

  private fail(): never {
    throw new SyntaxError(`unexpected ${JSON.stringify(this.text.slice(this.at, this.at + 10))} at ${this.at} in JSON`);
  }
}

/** JSON text of a scalar; a bigint is written with all its digits. @throws RangeError for NaN and infinities. */
export function scalarJson(value: string | number | bigint | boolean): string {
  if (typeof value !== 'number') return typeof value === 'bigint' ? String(value) : JSON.stringify(value);
  if (!Number.isFinite(value)) throw new RangeError(`JSON has no form for ${value}`);
  return Object.is(value, -0) ? '-0' : String(value);
}

/** A value as a message shows it: short, and without a throw for values that have no JSON or string form. */
export function showValue(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 100 ? `${value.slice(0, 100)}…` : value);
  if (Array.isArray(value)) return 'an array';
  if (typeof value === 'object' && value !== null) return 'an object';
  return typeof value === 'function' ? 'a function' : String(value);
}
