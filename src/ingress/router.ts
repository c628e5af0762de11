/**
 * From method and URL to a route: pure, one table.
 *
 * URLs of requests are remembered in a bounded map, so that a client's usual URL costs one look-up. Model names are any one path segment after
 * percent-decoding; nothing here touches a file.
 */
import { BatchportError } from '../config/errors.ts';

/** What a request asks for. `model` and `version` are decoded and unchecked. */
export interface Route {
  readonly endpoint: Endpoint;
  readonly model: string;
  /** Undefined: the latest. */
  readonly version: string | undefined;
  /** Of shared memory; undefined: all of them. */
  readonly region?: string;
}

/** Paths of the server, by the segments after /v2. `:m` and `:r` stand for a model and for a region of shared memory. */
export const ENDPOINTS = {
  serverMetadata: { path: [], methods: ['GET', 'HEAD'] },
  live: { path: ['health', 'live'], methods: ['GET', 'HEAD'] },
  ready: { path: ['health', 'ready'], methods: ['GET', 'HEAD'] },
  // Before the model of that name.
  statistics: { path: ['models', 'stats'], methods: ['GET', 'HEAD'] },
  modelMetadata: { path: ['models', ':m'], methods: ['GET', 'HEAD'] },
  modelReady: { path: ['models', ':m', 'ready'], methods: ['GET', 'HEAD'] },
  modelConfig: { path: ['models', ':m', 'config'], methods: ['GET', 'HEAD'] },
  modelStatistics: { path: ['models', ':m', 'stats'], methods: ['GET', 'HEAD'] },
  infer: { path: ['models', ':m', 'infer'], methods: ['POST'] },
  repositoryIndex: { path: ['repository', 'index'], methods: ['POST'] },
  repositoryLoad: { path: ['repository', 'models', ':m', 'load'], methods: ['POST'] },
  repositoryUnload: { path: ['repository', 'models', ':m', 'unload'], methods: ['POST'] },
  openApi: { path: ['openapi.json'], methods: ['GET', 'HEAD'] },
  logging: { path: ['logging'], methods: ['GET', 'HEAD', 'POST'] },
  systemRegions: { path: ['systemsharedmemory', 'status'], methods: ['GET', 'HEAD'] },
  systemRegion: { path: ['systemsharedmemory', 'region', ':r', 'status'], methods: ['GET', 'HEAD'] },
  systemRegister: { path: ['systemsharedmemory', 'region', ':r', 'register'], methods: ['POST'] },
  systemUnregister: { path: ['systemsharedmemory', 'region', ':r', 'unregister'], methods: ['POST'] },
  systemUnregisterAll: { path: ['systemsharedmemory', 'unregister'], methods: ['POST'] },
  cudaRegions: { path: ['cudasharedmemory', 'status'], methods: ['GET', 'HEAD'] },
  cudaRegion: { path: ['cudasharedmemory', 'region', ':r', 'status'], methods: ['GET', 'HEAD'] },
  cudaRegister: { path: ['cudasharedmemory', 'region', ':r', 'register'], methods: ['POST'] },
  cudaUnregister: { path: ['cudasharedmemory', 'region', ':r', 'unregister'], methods: ['POST'] },
  cudaUnregisterAll: { path: ['cudasharedmemory', 'unregister'], methods: ['POST'] },
} as const satisfies Record<string, { path: readonly string[]; methods: readonly string[] }>;

export type Endpoint = keyof typeof ENDPOINTS;

/** The answer to a wrong method: the error, and what the path allows. */
export class MethodNotAllowed extends BatchportError {
  readonly allow: string;
  constructor(allow: string) {
    super('METHOD_NOT_ALLOWED', `Method Not Allowed; this path takes ${allow}.`);
    this.allow = allow;
  }
}

const URL_LENGTH_MAX = 8192;
const REMEMBERED_MAX = 1024;
const REMEMBERED_LENGTH_MAX = 512;

export class Router {
  readonly #remembered = new Map<string, Route>();

  /**
   * Finds the route of a request.
   *
   * @throws MethodNotAllowed, or BatchportError NOT_FOUND or BAD_URL.
   */
  match(method: string, url: string): Route {
    let route = this.#remembered.get(url);
    if (route === undefined) {
      route = parseUrl(url);
      if (url.length <= REMEMBERED_LENGTH_MAX) {
        if (this.#remembered.size >= REMEMBERED_MAX) this.#remembered.clear();
        this.#remembered.set(url, route);
      }
    }
    const methods: readonly string[] = ENDPOINTS[route.endpoint].methods;
    if (!methods.includes(method)) throw new MethodNotAllowed(methods.join(', '));
    return route;
  }
}

/** Parses a request target in origin form (`/v2/…`) or absolute form (`http://host/v2/…`). */
export function parseUrl(url: string): Route {
  if (url.length > URL_LENGTH_MAX)
    throw new BatchportError('BAD_URL', `The URL is longer than ${URL_LENGTH_MAX} characters.`);
  let path = url;
  if (!path.startsWith('/')) {
    const absolute = /^https?:\/\/[^/?#]*/i.exec(path);
    if (absolute === null) throw notFound();
    path = path.slice(absolute[0].length) || '/';
  }
  const end = path.search(/[?#]/);
  if (end >= 0) path = path.slice(0, end);
  if (path === '/v2/') path = '/v2';
  const segments = path.split('/').slice(1).map(decode);
  if (segments[0] !== 'v2') throw notFound();
  let rest = segments.slice(1);
  let version: string | undefined;
  // …/versions/V[/…] is the same path with a version.
  if (rest[0] === 'models' && rest[2] === 'versions') {
    version = rest[3];
    if (version === undefined || version === '') throw notFound();
    rest = [...rest.slice(0, 2), ...rest.slice(4)];
  }
  for (const endpoint of Object.keys(ENDPOINTS) as Endpoint[]) {
    const pattern: readonly string[] = ENDPOINTS[endpoint].path;
    if (pattern.length !== rest.length) continue;
    if (!pattern.every((part, n) => (part.startsWith(':') ? rest[n] !== '' : part === rest[n]))) continue;
    const region = rest[pattern.indexOf(':r')];
    const route = { endpoint, model: rest[pattern.indexOf(':m')] ?? '', version };
    return region === undefined ? route : { ...route, region };
  }
  throw notFound();
}

function decode(segment: string): string {
  if (!segment.includes('%')) return segment;
  try {
    return decodeURIComponent(segment);
  } catch {
    throw new BatchportError('BAD_URL', 'The URL has a malformed percent escape.');
  }
}

function notFound(): BatchportError {
  return new BatchportError('NOT_FOUND', 'Not Found');
}
