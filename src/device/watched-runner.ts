/**
 * A runner whose runs can be seen and cancelled from the main thread of the process. A cancelled run fails with a fault that says so; the next one is as if nothing
 * had happened.
 */
import { STATUS_DEADLINE } from '../queue/result.ts';
import { OrtError } from '../runtime/ort-error.ts';
import { Runner, type TensorValue } from '../runtime/runner.ts';
import type { SessionHandle } from '../runtime/session.ts';
import { nowUs } from '../system/clock.ts';
import type { RunControl } from './run-control.ts';
import { RunFault } from './slab-run.ts';

/** A run that passed its time and was ended. */
export class RunCancelled extends RunFault {
  constructor(limitMs: number) {
    super(STATUS_DEADLINE, `The run was cancelled after ${limitMs / 1000} s (--run-timeout-s, run_timeout_ms).`);
  }
}

export class WatchedRunner extends Runner {
  readonly #control: RunControl;
  readonly #limitMs: number;
  readonly #onRun: (sinceUs: number) => void;

  /**
   * @param limitMs of a run, for the message.
   * @param onRun told of the start of every run, on the shared clock.
   */
  constructor(
    handle: SessionHandle,
    control: RunControl,
    limitMs: number,
    onRun: (sinceUs: number) => void = () => {},
  ) {
    super(handle);
    this.#control = control;
    this.#limitMs = limitMs;
    this.#onRun = onRun;
    control.offer(this.cancelToken);
  }

  /** As Runner's. @throws RunCancelled too */
  override run(
    inputs: readonly TensorValue[],
    outputIndices: readonly number[],
    outputs: (TensorValue | undefined)[],
    shrinkArena = false,
  ): void {
    for (;;) {
      // Left by a cancellation that came when the run it was meant for had just ended.
      if (this.#control.cancelled !== 0) this.#reset();
      const sinceUs = nowUs();
      this.#onRun(sinceUs);
      const run = this.#control.begin(sinceUs);
      try {
        super.run(inputs, outputIndices, outputs, shrinkArena);
        return;
      } catch (error) {
        const { cancelled } = this.#control;
        if (cancelled === 0 || !(error instanceof OrtError)) throw error;
        this.#reset();
        if (cancelled === run) throw new RunCancelled(this.#limitMs);
        // Meant for the run before this one.
      } finally {
        this.#control.end();
      }
    }
  }

  #reset(): void {
    this.#control.reset(() => this.resetCancel());
  }

  override dispose(): void {
    this.#control.close();
    super.dispose();
  }
}
