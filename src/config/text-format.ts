/**
 * The text form of protocol buffers, as `config.pbtxt` is written in: read into a tree of fields with their places, without a schema.
 *
 *     # a comment
 *     name: "a" "b"      version_policy: { latest { num_versions: 2 } }      dims: [ 1, -1 ]      kind: KIND_GPU
 *
 * Source: the specification of the text format (protobuf.dev/reference/protobuf/textformat-spec). Extensions (`[package.name]`) are not read. Bounds: depth DEPTH_MAX,
 * FIELDS_MAX fields.
 */
import { type TextPosition, TextPositions } from './text-position.ts';

export type TextScalar =
  | { readonly kind: 'string'; readonly text: string }
  /** A number, or a name such as `true` and those of enumerations. */
  | { readonly kind: 'word'; readonly text: string };

export type TextValue = (TextScalar | { readonly kind: 'message'; readonly fields: readonly TextField[] }) & {
  readonly position: TextPosition;
};

/** A field as often as it stands there; a list gives one for each of its elements. */
export interface TextField {
  readonly name: string;
  readonly value: TextValue;
  /** Of the name. */
  readonly position: TextPosition;
}

export class TextFormatError extends Error {
  readonly position: TextPosition;
  constructor(message: string, position: TextPosition) {
    super(message);
    this.position = position;
  }
}

const DEPTH_MAX = 32;
const FIELDS_MAX = 10_000;
/** Blanks and comments. */
const GAP = /(?:\s+|#[^\n]*)*/y;
const NAME = /[A-Za-z_][A-Za-z0-9_]*/y;
const WORD = /-?\s*(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?|[A-Za-z_][A-Za-z0-9_]*)/y;
const STRING = /"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*'/y;
const ESCAPE = /\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|(.))/g;
const PLAIN_ESCAPES: Readonly<Record<string, string>> = {
  a: '\x07',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  v: '\v',
};

/** @throws TextFormatError */
export function parseTextFormat(text: string): readonly TextField[] {
  return new Parser(text).fields(undefined, 0);
}

class Parser {
  readonly #text: string;
  readonly #positions: TextPositions;
  #at = 0;
  #count = 0;

  constructor(text: string) {
    this.#text = text;
    this.#positions = new TextPositions(text);
  }

  /** Fields up to the closing bracket, or to the end of the text. */
  fields(close: string | undefined, depth: number): TextField[] {
    if (depth > DEPTH_MAX) this.#fail(`messages are nested more than ${DEPTH_MAX} deep`);
    const fields: TextField[] = [];
    for (;;) {
      this.#gap();
      if (this.#at === this.#text.length) {
        if (close !== undefined) this.#fail(`the text ends where ${JSON.stringify(close)} is missing`);
        return fields;
      }
      if (close !== undefined && this.#take(close)) return fields;
      this.#field(fields, depth);
    }
  }

  #field(fields: TextField[], depth: number): void {
    const position = this.#position();
    const name = this.#match(NAME) ?? this.#fail('a field name is expected');
    this.#gap();
    const colon = this.#take(':');
    this.#gap();
    for (const value of this.#values(colon, depth)) {
      if (++this.#count > FIELDS_MAX) this.#fail(`there are more than ${FIELDS_MAX} fields`);
      fields.push({ name, value, position });
    }
    this.#gap();
    if (!this.#take(',')) this.#take(';');
  }

  #values(colon: boolean, depth: number): TextValue[] {
    if (!this.#take('[')) return [this.#value(colon, depth)];
    const values: TextValue[] = [];
    this.#gap();
    if (this.#take(']')) return values;
    for (;;) {
      this.#gap();
      values.push(this.#value(colon, depth));
      this.#gap();
      if (this.#take(']')) return values;
      if (!this.#take(',')) this.#fail('a comma or "]" is expected');
    }
  }

  #value(colon: boolean, depth: number): TextValue {
    const position = this.#position();
    for (const [open, close] of ['{}', '<>']) {
      if (this.#take(open!)) return { kind: 'message', fields: this.fields(close, depth + 1), position };
    }
    if (!colon) this.#fail('":" or a message in "{}" is expected');
    let text = this.#match(STRING);
    if (text !== undefined) {
      let whole = '';
      for (; text !== undefined; text = this.#match(STRING)) {
        whole += unescaped(text.slice(1, -1));
        this.#gap();
      }
      return { kind: 'string', text: whole, position };
    }
    const word = this.#match(WORD) ?? this.#fail('a value is expected');
    return { kind: 'word', text: word.replace(/\s+/g, ''), position };
  }

  #gap(): void {
    this.#match(GAP);
  }

  #take(character: string): boolean {
    if (this.#text[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  #match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text)?.[0];
    if (found !== undefined) this.#at += found.length;
    return found;
  }

  #position(): TextPosition {
    return this.#positions.of(this.#at);
  }

  #fail(message: string): never {
    throw new TextFormatError(message, this.#position());
  }
}

function unescaped(text: string): string {
  return text.replace(ESCAPE, (_, octal?: string, hex?: string, unicode?: string, plain?: string) => {
    if (octal !== undefined) return String.fromCharCode(Number.parseInt(octal, 8));
    const code = hex ?? unicode;
    if (code !== undefined) return String.fromCharCode(Number.parseInt(code, 16));
    return PLAIN_ESCAPES[plain!] ?? plain!;
  });
}
