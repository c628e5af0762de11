/**
 * Which names a model may have: it is one directory name and one segment of a URL, and it stands in logs and metrics.
 *
 * Any Unicode text of 1 to 255 bytes in UTF-8 (the limit of file names) that does not start with a dot and holds no '/', no
 * control character and no line separator. Case and normal form are kept: names are compared byte by byte.
 */

const NAME_BYTES_MAX = 255;

/** Why `name` cannot be the name of a model, to follow "it "; undefined when it can. */
export function modelNameProblem(name: string): string | undefined {
  if (name === '') {
    return 'is empty';
  }
  if (name.startsWith('.')) {
    return 'starts with a dot';
  }
  if (name.includes('/')) {
    return 'contains "/"';
  }
  // Zero bytes and line ends among them.
  if (/[\p{Cc}\u2028\u2029]/u.test(name)) {
    return 'contains a control character';
  }
  // What a file name that is not UTF-8 turns into when it is read; such a name could not be asked for in a URL either.
  if (/[\p{Cs}\ufffd]/u.test(name)) {
    return 'is not valid UTF-8';
  }
  const bytes = new TextEncoder().encode(name).byteLength;
  return bytes > NAME_BYTES_MAX ? `is ${bytes} bytes long; ${NAME_BYTES_MAX} are allowed` : undefined;
}
