/**
 * The keys of a JSON object that its reader understands, recognised in the bytes of the text without making a string of each.
 */
export class JsonKeys {
  /** Stands for every key that is not one of the names. */
  static readonly UNKNOWN = -1;
  readonly names: readonly string[];
  private readonly encoded: readonly Buffer[];

  constructor(names: readonly string[]) {
    this.names = names;
    this.encoded = names.map((name) => Buffer.from(name));
  }

  /** Index of the name that stands in `bytes[start, end)`, or `UNKNOWN`. */
  indexOf(bytes: Uint8Array, start: number, end: number): number {
    for (let index = 0; index < this.encoded.length; index++) {
      const name = this.encoded[index]!;
      if (name.length !== end - start) continue;
      let i = 0;
      while (i < name.length && name[i] === bytes[start + i]) i++;
      if (i === name.length) return index;
    }
    return JsonKeys.UNKNOWN;
  }
}
