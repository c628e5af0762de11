/**
 * A strict JSON reader (RFC 8259) that walks over the bytes of a request without building a tree.
 *
 * The caller drives it: it asks for the next key, element or value and skips what it has no use for. Nothing is allocated but the strings
 * that are asked for. The text is checked to be UTF-8 as a whole beforehand, so that strings need no second look.
 *
 * Bounds: nesting is limited to `JSON_DEPTH_MAX`, strings to `STRING_BYTES_MAX`, excerpts in messages to `EXCERPT_MAX` bytes. Reading past the end gives `undefined`,
 * which is no digit, no quote and no bracket, and so ends every loop.
 */
import { isUtf8 } from 'node:buffer';
import { BatchportError } from '../config/errors.ts';
import { skipEscape, unescapeInto } from './json-escapes.ts';
import type { JsonKeys } from './json-keys.ts';

/** Deepest nesting of arrays and objects a request may have, its own outer object included. */
export const JSON_DEPTH_MAX = 100;
const EXCERPT_MAX = 40;
/** Longest string that is read into a JavaScript string: names, ids. Elements of BYTES tensors are not. */
const STRING_BYTES_MAX = 1 << 20;

const QUOTE = 0x22;
const PLUS = 0x2b;
const COMMA = 0x2c;
const MINUS = 0x2d;
const DOT = 0x2e;
const ZERO = 0x30;
const COLON = 0x3a;
const OPEN_BRACKET = 0x5b;
const BACKSLASH = 0x5c;
const CLOSE_BRACKET = 0x5d;
const LETTER_F = 0x66;
const LETTER_N = 0x6e;
const LETTER_T = 0x74;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;

const TRUE = Buffer.from('true');
const FALSE = Buffer.from('false');
const NULL = Buffer.from('null');

/** Bytes that end an excerpt which is not a string. */
const STOPS = new Set(Buffer.from(' \t\r\n,:[]{}"'));

/** What stands at the cursor, judged by its first byte. */
export type JsonKind = 'object' | 'array' | 'string' | 'number' | 'boolean' | 'null' | 'end' | 'other';

export function isDigit(byte: number | undefined): boolean {
  return byte !== undefined && byte >= ZERO && byte <= 0x39;
}

export class JsonCursor {
  /** Exactly the JSON text. Loops over numbers read it directly and write `pos` back. */
  readonly bytes: Buffer;
  pos = 0;

  /** @throws BAD_REQUEST when the text is not UTF-8. */
  constructor(bytes: Buffer) {
    if (!isUtf8(bytes)) throw new BatchportError('BAD_REQUEST', 'the JSON of the request is not valid UTF-8');
    this.bytes = bytes;
  }

  /** The next byte that is not white space, without consuming it; -1 at the end. */
  peek(): number {
    const bytes = this.bytes;
    let pos = this.pos;
    let byte = bytes[pos];
    while (byte === 0x20 || byte === 0x0a || byte === 0x0d || byte === 0x09) byte = bytes[++pos];
    this.pos = pos;
    return byte ?? -1;
  }

  kind(): JsonKind {
    const byte = this.peek();
    switch (byte) {
      case OPEN_BRACE:
        return 'object';
      case OPEN_BRACKET:
        return 'array';
      case QUOTE:
        return 'string';
      case LETTER_T:
      case LETTER_F:
        return 'boolean';
      case LETTER_N:
        return 'null';
      case -1:
        return 'end';
      default:
        return isDigit(byte) || byte === MINUS ? 'number' : 'other';
    }
  }

  /** Consumes `byte`, with white space before it. */
  private expect(byte: number): void {
    if (this.peek() !== byte) this.fail(`expected '${String.fromCharCode(byte)}'`);
    this.pos++;
  }

  openObject(): void {
    this.expect(OPEN_BRACE);
  }

  openArray(): void {
    this.expect(OPEN_BRACKET);
  }

  /**
   * Moves to the next value of an open array.
   *
   * @returns false, with the cursor behind the closing bracket, when there is none.
   */
  nextElement(first: boolean): boolean {
    if (this.peek() === CLOSE_BRACKET) {
      this.pos++;
      return false;
    }
    if (first) return true;
    this.expect(COMMA);
    if (this.peek() === CLOSE_BRACKET) this.fail('expected a value behind the comma');
    return true;
  }

  /**
   * Moves to the next key of an open object.
   *
   * @returns false, with the cursor behind the closing brace, when there is none; else the cursor is at the key's quote.
   */
  nextMember(first: boolean): boolean {
    if (this.peek() === CLOSE_BRACE) {
      this.pos++;
      return false;
    }
    if (!first) this.expect(COMMA);
    if (this.peek() !== QUOTE) this.fail('expected a key in double quotes');
    return true;
  }

  /** Reads a key and its colon; the index in `keys`, or `JsonKeys.UNKNOWN`. */
  readKey(keys: JsonKeys): number {
    const start = this.pos;
    const escaped = this.skipString();
    const index = escaped
      ? keys.names.indexOf(this.stringAt(start))
      : keys.indexOf(this.bytes, start + 1, this.pos - 1);
    this.expect(COLON);
    return index;
  }

  /** The string whose quote is at `start`; the cursor stays where it is. */
  stringAt(start: number): string {
    const pos = this.pos;
    this.pos = start;
    const text = this.readString();
    this.pos = pos;
    return text;
  }

  /** Reads the string at the cursor. */
  readString(): string {
    if (this.peek() !== QUOTE) this.fail('expected a string');
    const start = this.pos + 1;
    const escaped = this.skipString();
    const end = this.pos - 1;
    if (end - start > STRING_BYTES_MAX) this.failAt(start, `a name or an id is longer than ${STRING_BYTES_MAX} bytes`);
    if (!escaped) return this.bytes.toString('utf8', start, end);
    const decoded = Buffer.allocUnsafe(end - start);
    return decoded.toString('utf8', 0, unescapeInto(this.bytes, start, end, decoded, 0));
  }

  /** Reads the string at the cursor, which is likely to be one of `keys`. */
  readStringOf(keys: JsonKeys): string {
    const start = this.pos;
    if (this.skipString()) return this.stringAt(start);
    return keys.names[keys.indexOf(this.bytes, start + 1, this.pos - 1)] ?? this.stringAt(start);
  }

  /**
   * Moves over the string whose quote is at the cursor.
   *
   * @returns whether it holds an escape.
   */
  skipString(): boolean {
    const bytes = this.bytes;
    let pos = this.pos + 1;
    let escaped = false;
    for (let byte = bytes[pos]; byte !== QUOTE; byte = bytes[pos]) {
      if (byte === undefined) this.failAt(pos, 'unterminated string');
      if (byte < 0x20) this.failAt(pos, 'control character in a string; write it as an escape');
      if (byte === BACKSLASH) {
        escaped = true;
        const end = skipEscape(bytes, pos);
        if (end < 0) this.failAt(pos, 'malformed escape, or half a surrogate pair, in a string');
        pos = end;
      } else pos++;
    }
    this.pos = pos + 1;
    return escaped;
  }

  /**
   * Moves over the number at the cursor.
   *
   * @returns whether it is written as an integer, without fraction or exponent.
   */
  skipNumber(): boolean {
    const bytes = this.bytes;
    const start = this.pos;
    const first = bytes[start] === MINUS ? start + 1 : start;
    let pos = this.skipDigits(first, start);
    if (bytes[first] === ZERO && pos > first + 1) this.failNumber(start);
    let integer = true;
    if (bytes[pos] === DOT) {
      integer = false;
      pos = this.skipDigits(pos + 1, start);
    }
    if (bytes[pos] === 0x65 || bytes[pos] === 0x45) {
      integer = false;
      const sign = bytes[pos + 1];
      pos = this.skipDigits(sign === PLUS || sign === MINUS ? pos + 2 : pos + 1, start);
    }
    this.pos = pos;
    return integer;
  }

  /** Position behind the digits at `from`, of which there must be one. */
  private skipDigits(from: number, numberStart: number): number {
    let pos = from;
    while (isDigit(this.bytes[pos])) pos++;
    return pos > from ? pos : this.failNumber(numberStart);
  }

  /**
   * Reads the number at the cursor.
   *
   * @returns NaN unless it is written as an integer; plus or minus infinity beyond 2^53 − 1, so that no inexact value comes out.
   */
  readPlainInteger(): number {
    const start = this.pos;
    if (!this.skipNumber()) return Number.NaN;
    const first = this.bytes[start] === MINUS ? start + 1 : start;
    let value = 0;
    for (let pos = first; pos < this.pos; pos++) value = value * 10 + (this.bytes[pos]! - ZERO);
    if (value > Number.MAX_SAFE_INTEGER) value = Number.POSITIVE_INFINITY;
    return first > start ? 0 - value : value;
  }

  readBoolean(): boolean {
    const value = this.peek() === LETTER_T;
    this.skipLiteral(value ? TRUE : FALSE);
    return value;
  }

  /** Moves over a `null`; false when something else is there. */
  skipNull(): boolean {
    if (this.peek() !== LETTER_N) return false;
    this.skipLiteral(NULL);
    return true;
  }

  private skipLiteral(literal: Buffer): void {
    for (let i = 0; i < literal.length; i++) if (this.bytes[this.pos + i] !== literal[i]) this.failValue();
    this.pos += literal.length;
  }

  /** Moves over any value, checking its grammar. `depth` is how many arrays and objects are open around it. */
  skipValue(depth: number): void {
    switch (this.kind()) {
      case 'object':
        if (depth >= JSON_DEPTH_MAX) this.fail(`nested deeper than ${JSON_DEPTH_MAX} levels`);
        this.openObject();
        for (let first = true; this.nextMember(first); first = false) {
          this.skipString();
          this.expect(COLON);
          this.skipValue(depth + 1);
        }
        return;
      case 'array':
        if (depth >= JSON_DEPTH_MAX) this.fail(`nested deeper than ${JSON_DEPTH_MAX} levels`);
        this.openArray();
        for (let first = true; this.nextElement(first); first = false) this.skipValue(depth + 1);
        return;
      case 'string':
        this.skipString();
        return;
      case 'number':
        this.skipNumber();
        return;
      case 'boolean':
        this.readBoolean();
        return;
      case 'null':
        this.skipLiteral(NULL);
        return;
      default:
        this.failValue();
    }
  }

  /** Makes sure that nothing but white space is left. */
  expectEnd(): void {
    if (this.peek() !== -1) this.fail('unexpected text behind the end of the request');
  }

  /** The value at `start` as it stands in the text, cut to a length fit for a message. */
  excerpt(start: number): string {
    const bytes = this.bytes;
    let end = start;
    if (bytes[start] === QUOTE) {
      end++;
      while (end < bytes.length && bytes[end] !== QUOTE) end = bytes[end] === BACKSLASH ? end + 2 : end + 1;
      end = Math.min(end + 1, bytes.length);
    } else {
      while (end < bytes.length && !STOPS.has(bytes[end]!)) end++;
      if (end === start && end < bytes.length) end++;
    }
    if (end === start) return 'the end of the text';
    if (end - start <= EXCERPT_MAX) return bytes.toString('utf8', start, end);
    // Cut between characters, not inside one.
    let cut = start + EXCERPT_MAX;
    while ((bytes[cut]! & 0xc0) === 0x80) cut--;
    return `${bytes.toString('utf8', start, cut)}…`;
  }

  /** @throws BAD_REQUEST saying what is wrong at the cursor. */
  fail(what: string): never {
    throw new BatchportError('BAD_REQUEST', `not valid JSON at byte ${this.pos}: ${what}`);
  }

  private failAt(pos: number, what: string): never {
    this.pos = pos;
    return this.fail(what);
  }

  private failNumber(start: number): never {
    this.pos = start;
    return this.failValue();
  }

  private failValue(): never {
    const text = this.excerpt(this.pos);
    if (/^-?(nan|inf(inity)?)$/i.test(text)) this.fail(`JSON has no ${text}; send the tensor in binary form`);
    return this.fail(
      isDigit(this.bytes[this.pos]) || text[0] === '-' ? `malformed number ${text}` : `expected a value, got ${text}`,
    );
  }
}
