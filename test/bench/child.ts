/**
 * Programs that a benchmark runs in processes of their own: started with `BenchChild.start`, each answers one message at a time.
 *
 * The parent owns the child; a child whose parent is gone ends by itself.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { CleanUp } from '../support/repository.ts';

type Reply<Answer> = { readonly answer: Answer } | { readonly error: string };

export class BenchChild<Question, Answer> {
  readonly #program: string;
  readonly #child: ChildProcess;

  private constructor(program: string) {
    this.#program = program;
    this.#child = fork(fileURLToPath(new URL(`${program}.js`, import.meta.url)), {
      execArgv: [],
      serialization: 'advanced',
    });
  }

  /** Starts a program of this folder, by its name without the ending. It ends with `cleanUp`. */
  static start<Question, Answer>(cleanUp: CleanUp, program: string): BenchChild<Question, Answer> {
    const child = new BenchChild<Question, Answer>(program);
    cleanUp.after(() => child.stop());
    return child;
  }

  get pid(): number {
    if (this.#child.pid === undefined) throw new Error(`${this.#program} could not be started`);
    return this.#child.pid;
  }

  /** @throws Error with what went wrong in the child, or with how it ended. */
  ask(question: Question): Promise<Answer> {
    const child = this.#child;
    return new Promise((resolve, reject) => {
      const settle = () => {
        child.removeListener('message', onMessage);
        child.removeListener('exit', onExit);
      };
      const onMessage = (reply: unknown) => {
        settle();
        const { answer, error } = reply as { answer: Answer; error?: string };
        if (error === undefined) resolve(answer);
        else reject(new Error(`${this.#program}: ${error}`));
      };
      const onExit = (code: number | null, signal: string | null) => {
        settle();
        reject(new Error(`${this.#program} ended (${signal ?? `exit code ${code}`})`));
      };
      child.once('message', onMessage);
      child.once('exit', onExit);
      child.send(question as object);
    });
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    if (this.#child.connected) this.#child.disconnect();
    await ended;
  }
}

/** The side of the child: answers every message with what `handle` gives, and ends with its parent. */
export function answerParent<Question, Answer>(handle: (question: Question) => Answer | Promise<Answer>): void {
  process.once('disconnect', () => process.exit(0));
  process.on('message', async (question: Question) => {
    let reply: Reply<Answer>;
    try {
      reply = { answer: await handle(question) };
    } catch (error) {
      reply = { error: error instanceof Error ? (error.stack ?? error.message) : String(error) };
    }
    process.send!(reply);
  });
}
