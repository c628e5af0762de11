/**
 * The URL and the hash of a file of weights: what they may be, and how the URL is shown.
 *
 * Invariant: what stands in a log line, a message, a status or a document is `shownUrl`. The query of a presigned URL is as good as a password, so nothing of it
 * is shown, and neither is a name or password before the host, which is not accepted in the first place.
 */

export const WEIGHT_URL_LENGTH_MAX = 4096;

/** One file of a model, and where it is fetched from. */
export interface WeightFile {
  /** Its name in the directory of the model; may lie in directories of its own there. */
  readonly path: string;
  readonly url: string;
  /** Of its content, in lower case. */
  readonly sha256: string;
}

const SHA256 = /^[0-9a-f]{64}$/;

/** Whether a text is a hash as files of weights are known by, and named by in the cache. */
export function isSha256(text: string): boolean {
  return SHA256.test(text);
}

const PAGE_HOSTS: ReadonlySet<string> = new Set(['huggingface.co', 'hf.co', 'github.com']);

/** Why a file cannot be fetched from there, to follow "it "; undefined when it may. Never shows the text. */
export function weightUrlProblem(text: string): string | undefined {
  if (text.length > WEIGHT_URL_LENGTH_MAX) return `has more than ${WEIGHT_URL_LENGTH_MAX} characters`;
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined) return 'is not a URL such as https://host/path/model.onnx';
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return 'does not begin with https:// or http://';
  if (url.username !== '' || url.password !== '') return 'has a name or password in it; see --weight-credentials';
  if (PAGE_HOSTS.has(url.hostname) && /^\/[^/]+\/[^/]+\/blob\//.test(url.pathname)) {
    return 'is a page that shows the file; the file itself has resolve (Hugging Face) or raw (GitHub) in the place of blob';
  }
  return undefined;
}

/** The URL without what could be secret, for logs and messages. */
export function shownUrl(url: string | URL): string {
  const parsed = typeof url === 'string' ? (URL.canParse(url) ? new URL(url) : undefined) : url;
  if (parsed === undefined) return '(not a URL)';
  const query = parsed.search === '' ? '' : '?…';
  return `${parsed.origin}${parsed.pathname}${query}`;
}
