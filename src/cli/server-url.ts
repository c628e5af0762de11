/**
 * Where the commands that talk to a running server find it: where they are told, else where a server of this user says it is
 * in the runtime directory, else where the settings of this environment would put one.
 *
 * A running server has a file `server-<pid>.json` there. Invariant: only files of this user and of live processes count.
 * Bounds: FILES_MAX files of at most FILE_BYTES_MAX.
 */
import { lstatSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ExitError } from '../config/exit-codes.ts';
import { resolveSettings } from '../config/settings-resolve.ts';
import { processStart } from '../system/process-start.ts';
import { printable, type Terminal } from './terminal.ts';

const FILES_MAX = 100;
const FILE_BYTES_MAX = 4096;

/** An address of the server: of the inference protocol, or of its metrics and status. */
export type Endpoint = 'http' | 'metrics';

interface RunningServer {
  readonly pid: number;
  readonly url: string;
}

/**
 * The server's base URL, without a slash at the end.
 *
 * @param given value of --url
 * @throws ExitError USAGE when that is no http(s) URL, or when there is none and more than one server runs
 */
export function serverUrl(given: string | undefined, endpoint: Endpoint, terminal: Terminal): string {
  if (given !== undefined) return checkedUrl(given);
  const { settings } = resolveSettings({ env: terminal.env, cwd: terminal.cwd, modelRequired: false });
  const port = endpoint === 'http' ? 'httpPort' : 'metricsPort';
  const configured = `http://${reachable(settings.host)}:${settings[port]}`;
  if (settings.origins[port].source !== 'default') return configured;

  const running = runningServers(settings.runtimeDir, endpoint);
  const [first] = running;
  if (first === undefined || running.some(({ url }) => url === configured)) return configured;
  if (running.length === 1) return checkedUrl(first.url);
  const hint = running.map(({ pid, url }) => `${printable(url)} (pid ${pid})`).join(', ');
  throw new ExitError('USAGE', `${running.length} servers run here; choose one with --url`, { hint });
}

function checkedUrl(text: string): string {
  if (text.startsWith('unix:')) {
    throw new ExitError('USAGE', `${text} is a Unix socket, which this command cannot reach; try curl --unix-socket`);
  }
  const full = /^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `http://${text}`;
  const url = URL.canParse(full) ? new URL(full) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.hostname === '') {
    throw new ExitError('USAGE', `--url: ${JSON.stringify(text)} is not a URL such as http://127.0.0.1:8000`);
  }
  return full.replace(/\/+$/, '');
}

/** A server that listens on all addresses is reached through the loopback one. */
function reachable(host: string): string {
  if (host.startsWith('unix:') || host === '0.0.0.0') return '127.0.0.1';
  const bare = host.replace(/^\[(.*)\]$/, '$1');
  if (bare === '::') return '[::1]';
  return bare.includes(':') ? `[${bare}]` : bare;
}

/** Servers of this user that run now, as far as the runtime directory tells. */
export function runningServers(runtimeDir: string, endpoint: Endpoint): RunningServer[] {
  return listFiles(runtimeDir).flatMap((name) => {
    const server = readServerFile(join(runtimeDir, name), endpoint);
    return server === undefined ? [] : [server];
  });
}

function listFiles(directory: string): string[] {
  try {
    return readdirSync(directory)
      .filter((name) => /^server-\d{1,10}\.json$/.test(name))
      .slice(0, FILES_MAX);
  } catch {
    // Mostly because no server has run yet.
    return [];
  }
}

function readServerFile(path: string, endpoint: Endpoint): RunningServer | undefined {
  try {
    const { size, uid } = lstatSync(path);
    // The directory may lie where others can write; a file of theirs could send tensors anywhere.
    if (size > FILE_BYTES_MAX || uid !== process.getuid?.()) return undefined;
    const { pid, started, [endpoint]: url } = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
    if (typeof pid !== 'number' || typeof url !== 'string') return undefined;
    // Another process may have its number by now.
    if (processStart(pid) === undefined || processStart(pid) !== started) return undefined;
    return { pid, url: url.replace('//0.0.0.0:', '//127.0.0.1:').replace('//[::]:', '//[::1]:') };
  } catch {
    // Gone meanwhile, left by a server that was killed, or not written by one.
    return undefined;
  }
}
