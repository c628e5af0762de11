/**
 * Seeded random numbers for tests: xoshiro128** (Blackman and Vigna, "Scrambled linear pseudorandom number generators"), its state filled by
 * splitmix32. The same seed gives the same run on every machine.
 */

export class Random {
  readonly seed: number;
  private readonly state = new Uint32Array(4);

  /** @param seed Any number; its low 32 bits count. */
  constructor(seed: number) {
    this.seed = seed >>> 0;
    let mix = this.seed;
    for (let i = 0; i < 4; i++) {
      mix = (mix + 0x9e3779b9) >>> 0;
      let z = mix;
      z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
      z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
      this.state[i] = z ^ (z >>> 16);
    }
  }

  /** A whole number in [0, 2^32). */
  uint32(): number {
    const s = this.state;
    const s1 = s[1]!;
    const product = Math.imul(s1, 5);
    const result = Math.imul((product << 7) | (product >>> 25), 9) >>> 0;
    s[2]! ^= s[0]!;
    s[3]! ^= s1;
    s[1]! ^= s[2]!;
    s[0]! ^= s[3]!;
    s[2]! ^= s1 << 9;
    const s3 = s[3]!;
    s[3] = (s3 << 11) | (s3 >>> 21);
    return result;
  }

  /** A number in [0, 1) with 32 random bits. */
  float(): number {
    return this.uint32() / 0x1_0000_0000;
  }

  /** A whole number in [low, high], both included; the span must not pass 2^32. */
  int(low: number, high: number): number {
    return low + Math.floor(this.float() * (high - low + 1));
  }

  /** True with the given probability. */
  chance(probability: number): boolean {
    return this.float() < probability;
  }

  /** A 64-bit pattern as an unsigned bigint. */
  uint64(): bigint {
    return (BigInt(this.uint32()) << 32n) | BigInt(this.uint32());
  }

  bytes(length: number): Uint8Array {
    const out = new Uint8Array(length);
    for (let i = 0; i < length; i++) out[i] = this.uint32() >>> 24;
    return out;
  }

  /** One of the items; there must be at least one. */
  pick<T>(items: readonly T[]): T {
    return items[this.int(0, items.length - 1)]!;
  }

  /** A shuffled copy. */
  shuffled<T>(items: readonly T[]): T[] {
    const out = [...items];
    for (let i = out.length - 1; i > 0; i--) {
      const j = this.int(0, i);
      [out[i], out[j]] = [out[j]!, out[i]!];
    }
    return out;
  }

  /** An independent stream, for a caller or thread of its own. */
  fork(): Random {
    return new Random(this.uint32());
  }
}

/**
 * A generator whose seed comes from an environment variable, or else from the clock, and is printed either way: a failing run is repeated
 * by setting the variable.
 *
 * @throws Error when the variable is set to something else than a whole number.
 */
export function seedFromEnv(variable = 'TEST_SEED'): Random {
  const text = process.env[variable];
  if (text !== undefined && !/^\d{1,10}$/.test(text))
    throw new Error(`${variable} must be a whole number, not ${JSON.stringify(text)}`);
  const seed = text === undefined ? (Date.now() ^ (process.pid << 16)) >>> 0 : Number(text) >>> 0;
  console.log(`seed: repeat this run with ${variable}=${seed}`);
  return new Random(seed);
}
