/**
 * The nearest known name to a mistyped one, for messages: "unknown key "htp_port"; did you mean "http_port"?".
 *
 * Distance is the number of inserted, removed, replaced or swapped neighbouring characters (optimal string alignment,
 * the restricted form of Damerau's distance). Bounded: names longer than `NAME_LENGTH_MAX` are never compared.
 */

const NAME_LENGTH_MAX = 64;

/**
 * @returns the known name nearest to `name`, or undefined when none is within a third of its length (at least one edit).
 */
export function nearest(name: string, known: Iterable<string>): string | undefined {
  if (name.length > NAME_LENGTH_MAX) return undefined;
  const folded = fold(name);
  let best: string | undefined;
  let bestDistance = Math.max(1, Math.floor(folded.length / 3)) + 1;
  for (const candidate of known) {
    if (candidate.length > NAME_LENGTH_MAX) continue;
    const distance = editDistance(folded, fold(candidate));
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/** ` Did you mean "x"?` with a leading space, or the empty string: to be appended to a message. */
export function didYouMean(name: string, known: Iterable<string>): string {
  const best = nearest(name, known);
  return best === undefined ? '' : ` Did you mean "${best}"?`;
}

/** Case and the kind of separator are not worth an edit: `HTTP-Port` is `http_port`. */
function fold(name: string): string {
  return name.toLowerCase().replaceAll('-', '_');
}

function editDistance(a: string, b: string): number {
  let beforePrevious: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const current = [i];
    for (let j = 1; j <= b.length; j++) {
      const replace = previous[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1);
      let cost = Math.min(replace, previous[j]! + 1, current[j - 1]! + 1);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        cost = Math.min(cost, beforePrevious[j - 2]! + 1);
      }
      current.push(cost);
    }
    beforePrevious = previous;
    previous = current;
  }
  return previous[b.length]!;
}
