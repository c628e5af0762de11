/**
 * Waiting without polling: whoever changes something calls `notify`, and `until` tries its question again. Every wait has a limit.
 */

export class Condition {
  private readonly waiting = new Set<() => void>();

  notify(): void {
    for (const wake of this.waiting) wake();
  }

  /**
   * The first answer of `attempt` that is not undefined.
   *
   * @param giveUp Tells why no answer can come any more, or undefined while one can.
   * @param explain Appended to the error's message.
   * @throws Error when the time passes or `giveUp` gives a reason.
   */
  async until<T>(
    limitMs: number,
    what: string,
    attempt: () => T | undefined,
    giveUp: () => string | undefined,
    explain: () => string,
  ): Promise<T> {
    const deadline = Date.now() + limitMs;
    for (;;) {
      const result = attempt();
      if (result !== undefined) return result;
      const leftMs = deadline - Date.now();
      const reason = giveUp() ?? (leftMs <= 0 ? `not within ${limitMs} ms` : undefined);
      if (reason !== undefined) throw new Error(`${what}: ${reason}; ${explain()}`);
      await this.changed(leftMs);
    }
  }

  private changed(limitMs: number): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        this.waiting.delete(done);
        resolve();
      };
      const timer = setTimeout(done, limitMs);
      this.waiting.add(done);
    });
  }
}
