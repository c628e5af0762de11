/**
 * Keeps the service manager (systemd with `Type=notify`) informed: ready, what is going on, more time while weights load, stopping, and signs of life.
 *
 *     start ─▶ STATUS, EXTEND_TIMEOUT_USEC while loading ─▶ READY=1 ─▶ STATUS, WATCHDOG=1 ─▶ STOPPING=1 ─▶ close
 *
 * The signs of life come from a timer of the supervisor's own event loop, so they stop when the loop does. They are also withheld while every instance is stuck in
 * its run: a server that answers nobody is to be started again. Without a manager there are no timers and nothing happens.
 *
 * Owner: the supervisor. Bounds: a status line only when it differs from the last one, at most one message a tick besides those of a transition.
 */
import type { Logger } from '../config/log.ts';
import type { Notification, ServiceManager } from '../system/notify.ts';
import type { ServiceReport } from './service-report.ts';

const TICK_MS = 1000;

/** The manager gives up on a load whose supervisor has said nothing for so long. */
export const LOAD_EXTENSION_US = 30_000_000;

export class ServiceNotifier {
  readonly #manager: ServiceManager;
  readonly #report: () => ServiceReport;
  readonly #log: Logger;
  readonly #timers: NodeJS.Timeout[] = [];
  #status = '';
  /** Sent until the manager has taken it. */
  #pending: Notification | undefined;
  #ready = false;
  #stopping = false;
  #deaf = false;
  #withheld = false;

  constructor(manager: ServiceManager, report: () => ServiceReport, log: Logger) {
    this.#manager = manager;
    this.#report = report;
    this.#log = log;
    if (manager.problem !== undefined)
      log.warn({ reason: manager.problem }, 'the service manager cannot be told anything');
  }

  start(): void {
    if (!this.#manager.present) return;
    this.#timers.push(setInterval(() => this.update(), TICK_MS));
    const { watchdogUs } = this.#manager;
    if (watchdogUs !== undefined) {
      this.#timers.push(setInterval(() => this.#signOfLife(), Math.max(1, Math.floor(watchdogUs / 2000))));
    }
    this.update();
  }

  /** To be called when something has changed; also called at every tick. */
  update(): void {
    if (!this.#manager.present) return;
    const { ready, loading, status } = this.#report();
    if (this.#pending !== undefined) this.#sendPending();
    if (this.#stopping) return;
    if (ready && !this.#ready) {
      this.#ready = true;
      this.#status = status;
      this.#pending = { READY: 1, STATUS: status };
      this.#sendPending();
      this.#signOfLife();
      return;
    }
    const message: Record<string, string | number> = {};
    if (loading && !this.#ready) message.EXTEND_TIMEOUT_USEC = LOAD_EXTENSION_US;
    if (status !== this.#status) message.STATUS = status;
    if (Object.keys(message).length > 0 && this.#send(message)) this.#status = status;
  }

  /** @param limitS time after which the server is certain to have ended by itself */
  stopping(limitS: number): void {
    if (!this.#manager.present || this.#stopping) return;
    this.#stopping = true;
    this.#pending = { STOPPING: 1, STATUS: this.#report().status, EXTEND_TIMEOUT_USEC: limitS * 1_000_000 };
    this.#sendPending();
  }

  close(): void {
    for (const timer of this.#timers) clearInterval(timer);
    this.#manager.close();
  }

  #signOfLife(): void {
    if (!this.#manager.present || this.#manager.watchdogUs === undefined) return;
    const { stuck } = this.#report();
    if (!stuck) this.#send({ WATCHDOG: 1 });
    else if (!this.#withheld)
      this.#log.error('every instance is stuck in its run: the service manager gets no sign of life any more');
    this.#withheld = stuck;
  }

  #sendPending(): void {
    if (this.#pending !== undefined && this.#send(this.#pending)) this.#pending = undefined;
  }

  #send(message: Notification): boolean {
    const taken = this.#manager.notify(message);
    if (!taken && !this.#deaf) this.#log.warn({ message }, 'the service manager does not take messages');
    this.#deaf = !taken;
    return taken;
  }
}
