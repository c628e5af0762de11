/**
 * How long a server asks to be left alone, read off the headers of its answer.
 *
 * `Retry-After` goes first, as seconds or as a date, of which the server's own `Date` is taken off where it is there, so that clocks that differ do not matter. Else the
 * `RateLimit` field: of the limits with nothing remaining, the one that is reset last. Older servers split that into `RateLimit-Remaining` and `RateLimit-Reset`.
 * Whatever cannot be understood asks for nothing.
 *
 * Source: RFC 9110, sections 5.6.7 and 10.2.3; draft-ietf-httpapi-ratelimit-headers-11, and -06 for the older form; RFC 9651 for lists of items.
 */

export type Headers = Readonly<Record<string, string | readonly string[] | undefined>>;

/** Seconds from now, whole or not; undefined where the answer asks for no wait. 0 is an answer too: at once. */
export function askedWaitS(headers: Headers, nowMs: number): number | undefined {
  return retryAfterS(headers, nowMs) ?? exhaustedForS(headers);
}

/** Seconds until there is quota again, where the answer says that there is none left; it may say so with a 200. */
export function exhaustedForS(headers: Headers): number | undefined {
  const waits = textsOf(headers.ratelimit).flatMap(limitsOf);
  const remaining = wholeNumber(textsOf(headers['ratelimit-remaining'])[0]);
  const reset = wholeNumber(textsOf(headers['ratelimit-reset'])[0]);
  if (remaining === 0 && reset !== undefined) waits.push(reset);
  return waits.length === 0 ? undefined : Math.max(...waits);
}

function retryAfterS(headers: Headers, nowMs: number): number | undefined {
  const waits = textsOf(headers['retry-after']).flatMap((text) => {
    const seconds = wholeNumber(text);
    if (seconds !== undefined) return [seconds];
    const until = httpDateMs(text);
    if (until === undefined) return [];
    const sent = httpDateMs(textsOf(headers.date)[0] ?? '') ?? nowMs;
    return [Math.max(0, (until - sent) / 1000)];
  });
  return waits.length === 0 ? undefined : Math.max(...waits);
}

/** `t` of each exhausted limit of a list such as `"hourly";r=0;t=1200, "burst";r=3;t=5`. */
function limitsOf(list: string): number[] {
  const waits: number[] = [];
  for (const item of splitOutsideStrings(list, ',')) {
    const [, ...parameters] = splitOutsideStrings(item, ';');
    // Of a parameter that is given twice the last counts.
    const values = new Map(
      parameters.map((text) => [text.split('=', 1)[0]!.trim(), text.slice(text.indexOf('=') + 1)]),
    );
    const reset = wholeNumber(values.get('t'));
    if (wholeNumber(values.get('r')) === 0 && reset !== undefined) waits.push(reset);
  }
  return waits;
}

function splitOutsideStrings(text: string, separator: ',' | ';'): string[] {
  const parts: string[] = [];
  let start = 0;
  let inString = false;
  for (let at = 0; at < text.length; at++) {
    if (inString && text[at] === '\\') at++;
    else if (text[at] === '"') inString = !inString;
    else if (!inString && text[at] === separator) {
      parts.push(text.slice(start, at));
      start = at + 1;
    }
  }
  return [...parts, text.slice(start)];
}

/** The three forms that a date may have; all are in GMT, whether or not they say so. */
function httpDateMs(text: string): number | undefined {
  const forms =
    /^(\w{3}, \d{2} \w{3} \d{4} \d{2}:\d{2}:\d{2} GMT|\w{6,9}, \d{2}-\w{3}-\d{2} \d{2}:\d{2}:\d{2} GMT|\w{3} \w{3} [ \d]\d \d{2}:\d{2}:\d{2} \d{4})$/;
  const trimmed = text.trim();
  if (!forms.test(trimmed)) return undefined;
  const ms = Date.parse(trimmed.endsWith('GMT') ? trimmed : `${trimmed} GMT`);
  return Number.isNaN(ms) ? undefined : ms;
}

function wholeNumber(text: string | undefined): number | undefined {
  return text !== undefined && /^\s*\d{1,12}\s*$/.test(text) ? Number(text) : undefined;
}

function textsOf(value: string | readonly string[] | undefined): readonly string[] {
  if (value === undefined) return [];
  return typeof value === 'string' ? [value] : value;
}
