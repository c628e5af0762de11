/**
 * What the load is aimed at: the bytes of the request, and a first request that finds the address and shows whether the server takes it.
 */
import { Connection, type Target } from './connection.ts';

const DEFAULT_PORTS: Readonly<Record<string, number>> = { 'http:': 80, 'https:': 443 };

/**
 * @param url base address of the server, http or https; its path goes before `path`
 * @param headers further ones, which must hold no line ends
 */
export function makeTarget(
  url: string,
  path: string,
  headers: readonly (readonly [name: string, value: string])[],
  body: Uint8Array,
): Target {
  const { protocol, host, hostname, port, pathname } = new URL(url);
  const lines = [
    `POST ${pathname.replace(/\/+$/, '')}${path} HTTP/1.1`,
    `Host: ${host}`,
    ...headers.map(([name, value]) => `${name}: ${value}`),
    `Content-Length: ${body.length}`,
  ];
  const bare = hostname.replace(/^\[(.*)\]$/, '$1');
  return {
    host: bare,
    port: port === '' ? DEFAULT_PORTS[protocol]! : Number(port),
    serverName: protocol === 'https:' ? bare : undefined,
    request: Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1'), body]),
  };
}

export interface FirstAnswer {
  /** Address that the name stands for. */
  readonly address: string | undefined;
  /** Undefined where no answer came. */
  readonly status: number | undefined;
  /** Start of the body of an answer that is no success, or why there is none. */
  readonly text: string;
}

/** Sends one request. Never throws; a server that does not answer in time gives no status. */
export function sendOne(target: Target, timeoutMs: number): Promise<FirstAnswer> {
  return new Promise((resolve) => {
    let address: string | undefined;
    const settle = (status: number | undefined, text: string) => {
      clearTimeout(timer);
      connection.destroy();
      resolve({ address, status, text });
    };
    const connection = new Connection(target, {
      answered: ({ remoteAddress }, { status, sample }) => {
        address = remoteAddress;
        settle(status, sample);
      },
      failed: (_, reason) => settle(undefined, reason),
    });
    const timer = setTimeout(() => settle(undefined, `no answer within ${timeoutMs} ms`), timeoutMs);
    connection.send(0);
  });
}
