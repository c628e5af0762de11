/**
 * Starts and ends of a server's child processes, read from its log: for tests of restarts.
 */
import type { LogLine, TestServer } from './server.ts';

export interface Start {
  readonly pid: number;
  readonly epoch: number;
  readonly atMs: number;
}

export interface End {
  readonly pid: number;
  readonly how: string;
  /** When its end was known, and the pause that was drawn then. */
  readonly atMs: number;
  readonly restartInMs: number;
}

export function startsOf(server: TestServer, role: 'device' | 'ingress', place?: string): Start[] {
  return lines(server, `${role} process started`, place).map((line) => ({
    pid: Number(line.childPid),
    epoch: Number(line.epoch),
    atMs: timeOf(line),
  }));
}

export function endsOf(server: TestServer, role: 'device' | 'ingress', place?: string): End[] {
  return lines(server, `${role} process ended`, place).map((line) => ({
    pid: Number(line.childPid),
    how: String(line.how),
    atMs: timeOf(line),
    restartInMs: Number(line.restartInMs),
  }));
}

function lines(server: TestServer, message: string, place: string | undefined): LogLine[] {
  return server.logs.filter(
    ({ msg, device, slot }) => msg === message && (place === undefined || place === String(device ?? slot)),
  );
}

function timeOf(line: LogLine): number {
  return Date.parse(String(line.time));
}

/**
 * Complaints about starts that came before the pause after the end before them was over.
 *
 * Times in the log are whole milliseconds, and so is the pause.
 */
export function earlyStarts(server: TestServer, role: 'device' | 'ingress', place: string): string[] {
  const ends = endsOf(server, role, place);
  const starts = startsOf(server, role, place);
  return ends.flatMap(({ pid, atMs, restartInMs }) => {
    const next = starts[starts.findIndex((start) => start.pid === pid) + 1];
    if (next === undefined || next.atMs - atMs >= restartInMs - 2) return [];
    return [`${place}: started ${next.atMs - atMs} ms after the end of ${pid} instead of ${restartInMs} ms`];
  });
}
