/**
 * A strict JSON reader for files that people write: it knows where each value and key stands.
 *
 * RFC 8259, and beyond it: a key may appear once in an object, and a UTF-8 byte order mark at the start is skipped. The
 * first fault ends the reading; its message has line and column (both from 1, columns in characters). Objects come back
 * without a prototype, so `__proto__` and `constructor` are keys like any other.
 * Bounds: the caller's limit in bytes, and DEPTH_MAX nested values.
 */
import { type TextPosition, TextPositions } from './text-position.ts';

const DEPTH_MAX = 64;

export type JsonValue = null | boolean | number | string | readonly JsonValue[] | JsonObject;

export interface JsonObject {
  readonly [key: string]: JsonValue;
}

export type JsonPath = readonly PropertyKey[];

export class JsonTextError extends Error {
  readonly position: TextPosition;

  constructor(message: string, position: TextPosition) {
    super(message);
    this.name = 'JsonTextError';
    this.position = position;
  }
}

/** Offsets in the text of one member of an object (its key and its value) or of one element of an array. */
interface Place {
  readonly keyAt: number;
  readonly valueAt: number;
}

/** For each object and array of a document: where its members stand. */
type Places = ReadonlyMap<JsonValue, ReadonlyMap<string, Place>>;

export class JsonDocument {
  readonly value: JsonValue;
  readonly #positions: TextPositions;
  readonly #rootAt: number;
  readonly #places: Places;

  constructor(text: string, value: JsonValue, rootAt: number, places: Places) {
    this.value = value;
    this.#positions = new TextPositions(text);
    this.#rootAt = rootAt;
    this.#places = places;
  }

  /** Where the value at `path` begins; where it does not exist, the nearest value around it. */
  valuePosition(path: JsonPath): TextPosition {
    return this.#positions.of(this.#place(path).valueAt);
  }

  /** Where the key at the end of `path` begins; where it does not exist, the nearest key around it. */
  keyPosition(path: JsonPath): TextPosition {
    return this.#positions.of(this.#place(path).keyAt);
  }

  #place(path: JsonPath): Place {
    let value: JsonValue | undefined = this.value;
    let place: Place = { keyAt: this.#rootAt, valueAt: this.#rootAt };
    for (const part of path) {
      const next: Place | undefined = value === undefined ? undefined : this.#places.get(value)?.get(String(part));
      if (next === undefined) {
        break;
      }
      place = next;
      value = (value as JsonObject)[String(part)];
    }
    return place;
  }
}

/** @throws JsonTextError when the bytes pass `sizeMaxBytes`, are not UTF-8 or not JSON. */
export function parseJsonBytes(bytes: Uint8Array, sizeMaxBytes: number): JsonDocument {
  if (bytes.byteLength > sizeMaxBytes) {
    throw new JsonTextError(`is ${bytes.byteLength} bytes long; at most ${sizeMaxBytes} are read`, {
      line: 1,
      column: 1,
    });
  }
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new JsonTextError('is not UTF-8 text', { line: 1, column: 1 });
  }
  return new Reader(text).read();
}

const NUMBER = /^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$/;
const WORD = /[0-9A-Za-z_.+-]*/y;
const LITERALS: ReadonlyMap<string, JsonValue> = new Map([
  ['true', true],
  ['false', false],
  ['null', null],
]);

class Reader {
  readonly #text: string;
  readonly #places = new Map<JsonValue, Map<string, Place>>();
  #at = 0;
  #depth = 0;

  constructor(text: string) {
    this.#text = text;
  }

  read(): JsonDocument {
    this.#skipBlanks();
    if (this.#at === this.#text.length) {
      this.#fail('is empty; the smallest valid content is {}');
    }
    const rootAt = this.#at;
    const value = this.#value();
    this.#skipBlanks();
    if (this.#at < this.#text.length) {
      this.#fail(`unexpected ${this.#found()} after the end of the JSON value`);
    }
    return new JsonDocument(this.#text, value, rootAt, this.#places);
  }

  #value(): JsonValue {
    const first = this.#text[this.#at];
    if (first === '{' || first === '[') {
      if (this.#depth === DEPTH_MAX) {
        this.#fail(`nested deeper than ${DEPTH_MAX} levels`);
      }
      this.#depth++;
      const container = first === '{' ? this.#object() : this.#array();
      this.#depth--;
      return container;
    }
    if (first === '"') {
      return this.#string();
    }
    const word = this.#word();
    const literal = LITERALS.get(word);
    if (literal === undefined && !NUMBER.test(word)) {
      this.#fail(`expected a value, found ${this.#found()}`);
    }
    this.#at += word.length;
    return literal === undefined ? Number(word) : literal;
  }

  #object(): JsonObject {
    const object: Record<string, JsonValue> = Object.create(null);
    const places = new Map<string, Place>();
    this.#places.set(object, places);
    this.#at++;
    this.#skipBlanks();
    if (this.#take('}')) {
      return object;
    }
    while (true) {
      if (this.#text[this.#at] !== '"') {
        this.#fail(`expected a key in double quotes, found ${this.#found()}`);
      }
      const keyAt = this.#at;
      const key = this.#string();
      if (key in object) {
        this.#at = keyAt;
        this.#fail(`key ${JSON.stringify(key)} stands twice in the same object`);
      }
      this.#skipBlanks();
      this.#expect(':', `after the key ${JSON.stringify(key)}`);
      this.#skipBlanks();
      places.set(key, { keyAt, valueAt: this.#at });
      object[key] = this.#value();
      this.#skipBlanks();
      if (this.#take('}')) {
        return object;
      }
      this.#expect(',', 'or "}"');
      this.#skipBlanks();
    }
  }

  #array(): JsonValue[] {
    const array: JsonValue[] = [];
    const places = new Map<string, Place>();
    this.#places.set(array, places);
    this.#at++;
    this.#skipBlanks();
    if (this.#take(']')) {
      return array;
    }
    while (true) {
      places.set(String(array.length), { keyAt: this.#at, valueAt: this.#at });
      array.push(this.#value());
      this.#skipBlanks();
      if (this.#take(']')) {
        return array;
      }
      this.#expect(',', 'or "]"');
      this.#skipBlanks();
    }
  }

  /** The extent is found here; escapes are then decoded, and control characters refused, by JSON.parse. */
  #string(): string {
    const start = this.#at;
    let end = start + 1;
    while (this.#text[end] !== '"') {
      const character = this.#text[end];
      if (character === undefined || character === '\n' || character === '\r') {
        this.#fail('a string is not closed on its line');
      }
      end += character === '\\' ? 2 : 1;
    }
    let value: unknown;
    try {
      value = JSON.parse(this.#text.slice(start, end + 1));
    } catch {
      this.#fail('a string holds a malformed escape or a bare control character');
    }
    this.#at = end + 1;
    return String(value);
  }

  #skipBlanks(): void {
    while (' \t\r\n'.includes(this.#text[this.#at] ?? '-')) {
      this.#at++;
    }
  }

  #take(character: string): boolean {
    const taken = this.#text[this.#at] === character;
    this.#at += taken ? 1 : 0;
    return taken;
  }

  #expect(character: string, where: string): void {
    if (!this.#take(character)) {
      this.#fail(`expected "${character}" ${where}, found ${this.#found()}`);
    }
  }

  #word(): string {
    WORD.lastIndex = this.#at;
    return WORD.exec(this.#text)?.[0] ?? '';
  }

  /** What stands here, for a message; names the usual habits from other dialects. */
  #found(): string {
    const character = this.#text[this.#at];
    if (character === undefined) {
      return 'the end of the file';
    }
    if (character === '/' || character === '#') {
      return `"${character}" (JSON has no comments)`;
    }
    if (character === "'") {
      return '"\'" (JSON uses double quotes)';
    }
    if ((character === '}' || character === ']') && /,[ \t\r\n]*$/.test(this.#text.slice(0, this.#at))) {
      return `"${character}" after a comma (JSON has no trailing commas)`;
    }
    return JSON.stringify(this.#word().slice(0, 32) || String.fromCodePoint(this.#text.codePointAt(this.#at)!));
  }

  #fail(message: string): never {
    throw new JsonTextError(message, new TextPositions(this.#text).of(this.#at));
  }
}
