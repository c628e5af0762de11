/** Where the commands that talk to a running server find it. */
import { ExitError } from '../config/exit-codes.ts';
import { resolveSettings } from '../config/settings-resolve.ts';
import type { Terminal } from './terminal.ts';

/**
 * The server's base URL: as given, or the port that a server started in the same environment listens on.
 *
 * @throws ExitError USAGE when it is not an http(s) URL
 */
export function serverUrl(given: string | undefined, port: 'httpPort' | 'metricsPort', terminal: Terminal): string {
  if (given === undefined) {
    const { settings } = resolveSettings({ env: terminal.env, cwd: terminal.cwd, modelRequired: false });
    return `http://${reachable(settings.host)}:${settings[port]}`;
  }
  const text = /^[a-z][a-z0-9+.-]*:\/\//i.test(given) ? given : `http://${given}`;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !/^https?:$/.test(url.protocol) || url.hostname === '') {
    throw new ExitError('USAGE', `--url: ${JSON.stringify(given)} is not a URL such as http://127.0.0.1:8000`);
  }
  return text.replace(/\/+$/, '');
}

/** A server that listens on all addresses is reached through the loopback one. */
function reachable(host: string): string {
  if (host === '0.0.0.0') return '127.0.0.1';
  if (host === '::') return '[::1]';
  return host.includes(':') ? `[${host}]` : host;
}
