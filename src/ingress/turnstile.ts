/**
 * Lets a few in at a time; the others wait in line, first come, first served. How many may wait is the caller's affair.
 */
export class Turnstile {
  readonly #line: (() => void)[] = [];
  #places: number;

  constructor(places: number) {
    this.#places = places;
  }

  /** Resolves when a place is ours; undefined when one was free. It has to be left. */
  enter(): Promise<void> | undefined {
    if (this.#places === 0) return new Promise((resolve) => this.#line.push(resolve));
    this.#places--;
    return undefined;
  }

  leave(): void {
    // The place goes to the next one without ever being free.
    const next = this.#line.shift();
    if (next === undefined) this.#places++;
    else next();
  }
}
