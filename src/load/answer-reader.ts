/**
 * Finds the ends of HTTP/1.1 answers in the bytes of one connection, at the least cost: what the load generator has to know is the status and whether the
 * connection may be used again. Bodies are counted and dropped, but for the start of one that is no success.
 *
 *     HEAD ─▶ LENGTH ─▶ done          CHUNK_SIZE ─▶ CHUNK_DATA ─▶ CHUNK_END ─▶ CHUNK_SIZE … ─▶ TRAILER ─▶ done
 *       └──▶ UNTIL_CLOSE ─▶ done      (1xx: back to HEAD)
 *
 * Source: RFC 9112, sections 2 to 7. Bounds: a head of HEAD_BYTES_MAX, a line of a chunked body of LINE_BYTES_MAX, SAMPLE_BYTES_MAX of a body.
 */
const HEAD_BYTES_MAX = 64 * 1024;
const LINE_BYTES_MAX = 4096;
const SAMPLE_BYTES_MAX = 400;
const HEAD_END = Buffer.from('\r\n\r\n');

type State = 'HEAD' | 'LENGTH' | 'CHUNK_SIZE' | 'CHUNK_DATA' | 'CHUNK_END' | 'TRAILER' | 'UNTIL_CLOSE';

/** What is not HTTP, or passes a bound. */
export class AnswerFault extends Error {}

interface Head {
  readonly text: string;
  readonly status: number;
  readonly keepAlive: boolean;
  readonly chunked: boolean;
  /** Undefined where there is none. */
  readonly contentLength: number | undefined;
}

export class AnswerReader {
  /** Of the answer that is or was read last. */
  status = 0;
  /** Whether the connection may carry another request. */
  keepAlive = false;
  #state: State = 'HEAD';
  /** Bytes of a head or line that is not whole yet. */
  #partial: Buffer = Buffer.alloc(0);
  /** Of the body or chunk. */
  #bytesLeft = 0;
  #sample = '';
  /** The last one; most answers of a run have the same, which then is not parsed again. */
  #head: Head | undefined;

  /** Start of the body of an answer that is no success, as text. */
  get sample(): string {
    return this.#sample;
  }

  /**
   * Takes the next bytes; they may be overwritten afterwards.
   *
   * @returns whether they complete an answer; bytes beyond it end the connection's usefulness, since nothing was asked
   * @throws AnswerFault
   */
  push(bytes: Buffer): boolean {
    let at = 0;
    while (at < bytes.length) {
      switch (this.#state) {
        case 'HEAD': {
          const taken = this.#takeHead(at === 0 ? bytes : bytes.subarray(at));
          if (taken === undefined) return false;
          at += taken;
          if (this.#begin(this.#head!)) return this.#done(at < bytes.length);
          break;
        }
        case 'LENGTH':
        case 'CHUNK_DATA': {
          const taken = Math.min(this.#bytesLeft, bytes.length - at);
          this.#keepSample(bytes, at, taken);
          at += taken;
          this.#bytesLeft -= taken;
          if (this.#bytesLeft > 0) return false;
          if (this.#state === 'LENGTH') return this.#done(at < bytes.length);
          this.#state = 'CHUNK_END';
          break;
        }
        case 'UNTIL_CLOSE':
          this.#keepSample(bytes, at, bytes.length - at);
          return false;
        default: {
          const end = bytes.indexOf(0x0a, at);
          const line = this.#lineFrom(bytes.subarray(at, end < 0 ? bytes.length : end + 1), end >= 0);
          if (line === undefined) return false;
          at = end + 1;
          if (this.#chunkLine(line)) return this.#done(at < bytes.length);
        }
      }
    }
    return false;
  }

  /** The server has closed: whether that completes an answer. */
  end(): boolean {
    if (this.#state !== 'UNTIL_CLOSE') return false;
    return this.#done(true);
  }

  /** @returns how many of the bytes belong to the head, which is in `#head` then; undefined while it is not whole. */
  #takeHead(bytes: Buffer): number | undefined {
    const before = this.#partial.length;
    const whole = before === 0 ? bytes : Buffer.concat([this.#partial, bytes]);
    const end = whole.indexOf(HEAD_END);
    if (end < 0) {
      if (whole.length > HEAD_BYTES_MAX) throw new AnswerFault(`a head of more than ${HEAD_BYTES_MAX} bytes`);
      this.#partial = before === 0 ? Buffer.from(whole) : whole;
      return undefined;
    }
    if (before > 0) this.#partial = Buffer.alloc(0);
    const text = whole.toString('latin1', 0, end + 2);
    if (this.#head?.text !== text) this.#head = parseHead(text);
    return end + HEAD_END.length - before;
  }

  /** @returns whether the answer has no body. */
  #begin({ status, keepAlive, chunked, contentLength }: Head): boolean {
    if (status < 200) {
      if (status === 101) throw new AnswerFault('the server wants to switch protocols');
      return false;
    }
    this.status = status;
    this.keepAlive = keepAlive;
    this.#sample = '';
    if (status === 204 || status === 304 || contentLength === 0) return true;
    if (chunked) this.#state = 'CHUNK_SIZE';
    else if (contentLength !== undefined) this.#state = 'LENGTH';
    else this.#state = 'UNTIL_CLOSE';
    this.#bytesLeft = contentLength ?? 0;
    return false;
  }

  /** A whole line with its end, or undefined while it is not whole. */
  #lineFrom(bytes: Buffer, isWhole: boolean): string | undefined {
    const before = this.#partial.length;
    if (before + bytes.length > LINE_BYTES_MAX) throw new AnswerFault('a line too long in a chunked body');
    const whole = before === 0 ? bytes : Buffer.concat([this.#partial, bytes]);
    this.#partial = isWhole ? Buffer.alloc(0) : Buffer.from(whole);
    return isWhole ? whole.toString('latin1').replace(/\r?\n$/, '') : undefined;
  }

  /** @returns whether the body ends with this line. */
  #chunkLine(line: string): boolean {
    switch (this.#state) {
      case 'CHUNK_SIZE': {
        const size = /^[0-9a-f]{1,12}(?=\s*(;|$))/i.exec(line)?.[0];
        if (size === undefined) throw new AnswerFault('a chunk without its size');
        this.#bytesLeft = Number.parseInt(size, 16);
        this.#state = this.#bytesLeft === 0 ? 'TRAILER' : 'CHUNK_DATA';
        return false;
      }
      case 'CHUNK_END':
        if (line !== '') throw new AnswerFault('a chunk longer than its size');
        this.#state = 'CHUNK_SIZE';
        return false;
      default:
        return line === '';
    }
  }

  #keepSample(bytes: Buffer, at: number, length: number): void {
    if (this.status < 300 || this.#sample.length >= SAMPLE_BYTES_MAX) return;
    this.#sample += bytes.toString('utf8', at, at + Math.min(length, SAMPLE_BYTES_MAX - this.#sample.length));
  }

  #done(useless: boolean): true {
    this.#state = 'HEAD';
    if (useless) this.keepAlive = false;
    return true;
  }
}

function parseHead(text: string): Head {
  const start = /^HTTP\/1\.([01]) ([1-9]\d\d)[ \r]/.exec(text);
  if (start === null) throw new AnswerFault(`not an HTTP answer: ${JSON.stringify(text.slice(0, 60))}`);
  const length = /\r\ncontent-length:[ \t]*(\d{1,15})[ \t]*\r/i.exec(text)?.[1];
  const connection = /\r\nconnection:[ \t]*([^\r]*)/i.exec(text)?.[1] ?? '';
  const chunked = /\r\ntransfer-encoding:[ \t]*([^\r]*,[ \t]*)?chunked[ \t]*\r/i.test(text);
  const keepAlive = start[1] === '1' ? !/\bclose\b/i.test(connection) : /\bkeep-alive\b/i.test(connection);
  const contentLength = chunked || length === undefined ? undefined : Number(length);
  return { text, status: Number(start[2]), keepAlive, chunked, contentLength };
}
