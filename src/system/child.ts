/**
 * What every child process of the supervisor does first: tie its life to the supervisor's, take its name, and listen to the channel. From then on it says at
 * intervals that its event loop turns: silence is how the supervisor learns that it does not.
 */
import { dieWithParent, setProcessName } from './process.ts';

/** Environment variable by which a child learns the pid of the supervisor that started it. */
export const SUPERVISOR_PID_VARIABLE = 'BATCHPORT_SUPERVISOR_PID';

/** How often a child says that it is alive. */
export const ALIVE_INTERVAL_MS = 1000;

/** `sent` is called once the message is in the channel, or the channel is gone: whoever ends the process after a message waits for it. */
export type SendMessage<Out> = (message: Out, sent?: () => void) => void;

/**
 * Runs a child process on the messages of its IPC channel. An error that nobody handles ends the process (exit code 1 by Node), as a bug should.
 *
 * @param name at most 15 bytes, seen in ps and top.
 */
export function runChild<In, Out extends object>(
  name: string,
  handle: (message: In, send: SendMessage<Out>) => void,
): void {
  dieWithParent(Number(process.env[SUPERVISOR_PID_VARIABLE]));
  setProcessName(name);
  // The service manager's socket and watchdog are the supervisor's business.
  for (const variable of ['NOTIFY_SOCKET', 'WATCHDOG_USEC', 'WATCHDOG_PID']) delete process.env[variable];
  // Signals from a terminal reach the whole group; the supervisor decides who stops when.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {});
  const send: SendMessage<Out> = (message, sent = () => {}) => {
    if (process.connected) process.send?.(message, undefined, undefined, sent);
    else sent();
  };
  process.on('message', (message) => handle(message as In, send));
  process.on('disconnect', () => process.exit(0));
  send({ type: 'hello' } as unknown as Out);
  setInterval(() => send({ type: 'alive' } as unknown as Out), ALIVE_INTERVAL_MS);
}
