/**
 * Who is told what authorization: by origin, from a file (--weight-credentials) and, for Hugging Face, from where its own tools keep the token.
 *
 *     { "https://models.example.com":  { "authorization_env": "MODELS_AUTHORIZATION" },
 *       "https://other.example.com":   { "authorization_file": "/run/secrets/other" },
 *       "http://10.0.0.5:9000":        { "authorization": "Basic dXNlcjpwYXNz" } }
 *
 * An origin gets only its own, also after a redirect. Files are read anew for every request, so that a secret that is renewed is used at once. Invariant: no value from here
 * ever stands in a message, a log line or a status.
 */
import { closeSync, constants as fs, fstatSync, openSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { z } from 'zod';
import { WeightFault } from './fault.ts';

const FILE_BYTES_MAX = 2 ** 20;
const SECRET_BYTES_MAX = 64 * 1024;
const HUB = 'https://huggingface.co';

const entry = z.union([
  z.strictObject({ authorization: z.string() }),
  z.strictObject({ authorization_env: z.string() }),
  z.strictObject({ authorization_file: z.string() }),
]);
const fileSchema = z.record(z.string(), entry);

export interface CredentialSources {
  /** Absolute path of the file of --weight-credentials. */
  readonly file: string | undefined;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly home: string;
}

/** What to send as Authorization to an origin; undefined where nothing is known for it. @throws WeightFault CREDENTIALS */
export function authorizationFor(origin: string, sources: CredentialSources): string | undefined {
  const own = sources.file === undefined ? undefined : readFile(sources.file).get(origin);
  if (own !== undefined) return secretOf(own, origin, sources);
  return origin === hubOrigin(sources.env) ? hubAuthorization(sources) : undefined;
}

/** What is wrong with the file of --weight-credentials, to follow its name; undefined when nothing is. */
export function credentialsProblem(sources: CredentialSources): string | undefined {
  const { file } = sources;
  if (file === undefined) return undefined;
  try {
    for (const [origin, own] of readFile(file)) secretOf(own, origin, sources);
    return undefined;
  } catch (error) {
    if (error instanceof WeightFault) return error.message.replace(`${file} `, '');
    throw error;
  }
}

/** Entries by origin. */
function readFile(file: string): Map<string, z.infer<typeof entry>> {
  const refuse = (why: string): never => {
    throw new WeightFault('CREDENTIALS', `${file} ${why}`);
  };
  let value: unknown;
  try {
    value = JSON.parse(readBounded(file, FILE_BYTES_MAX));
  } catch (error) {
    // Not the message of JSON.parse: it quotes the text.
    return refuse(error instanceof SyntaxError ? 'is not valid JSON' : `cannot be read: ${(error as Error).message}`);
  }
  const parsed = fileSchema.safeParse(value);
  if (!parsed.success) {
    return refuse(
      'is not an object of origins, each with one of authorization, authorization_env and authorization_file',
    );
  }
  const entries = new Map<string, z.infer<typeof entry>>();
  for (const [name, own] of Object.entries(parsed.data)) {
    const url = URL.canParse(name) ? new URL(name) : undefined;
    const isOrigin = url !== undefined && url.href === `${url.origin}/` && /^https?:$/.test(url.protocol);
    if (!isOrigin) return refuse('has a key that is not an origin such as "https://host" or "https://host:8443"');
    entries.set(url.origin, own);
  }
  return entries;
}

function secretOf(own: z.infer<typeof entry>, origin: string, { file, env }: CredentialSources): string {
  const refuse = (why: string): never => {
    throw new WeightFault('CREDENTIALS', `${file} has no usable authorization for ${origin}: ${why}`);
  };
  if ('authorization' in own) return headerValue(own.authorization) ?? refuse('the value cannot stand in a header');
  if ('authorization_env' in own) {
    const name = own.authorization_env;
    const value = env[name];
    if (value === undefined || value === '') return refuse(`the variable ${name} is not set`);
    return headerValue(value) ?? refuse(`the value of the variable ${name} cannot stand in a header`);
  }
  const path = resolve(dirname(file ?? '/'), own.authorization_file);
  let text: string;
  try {
    text = readBounded(path, SECRET_BYTES_MAX);
  } catch (error) {
    return refuse(`${path} cannot be read: ${(error as Error).message}`);
  }
  return headerValue(text) ?? refuse(`the content of ${path} cannot stand in a header`);
}

/** The origin that the token is for: HF_ENDPOINT names mirrors. */
function hubOrigin(env: CredentialSources['env']): string {
  const endpoint = env.HF_ENDPOINT ?? '';
  return URL.canParse(endpoint) ? new URL(endpoint).origin : HUB;
}

/** As the tools of Hugging Face look for it: HF_TOKEN, the file HF_TOKEN_PATH, `token` in HF_HOME. */
function hubAuthorization({ env, home }: CredentialSources): string | undefined {
  const given = env.HF_TOKEN?.trim() ?? '';
  const directory = env.HF_HOME ?? join(env.XDG_CACHE_HOME ?? join(home, '.cache'), 'huggingface');
  const token = given !== '' ? given : (optionalText(env.HF_TOKEN_PATH ?? join(directory, 'token')) ?? '');
  return token === '' ? undefined : headerValue(`Bearer ${token}`);
}

function optionalText(path: string): string | undefined {
  try {
    return readBounded(path, SECRET_BYTES_MAX).trim();
  } catch {
    return undefined;
  }
}

function headerValue(text: string): string | undefined {
  const trimmed = text.trim();
  return /^[\x20-\x7e]+$/.test(trimmed) ? trimmed : undefined;
}

/** A regular file as text. @throws Error without its content in the message */
function readBounded(path: string, bytesMax: number): string {
  // Without O_NONBLOCK, opening a named pipe waits for a writer.
  const fd = openSync(path, fs.O_RDONLY | fs.O_NONBLOCK);
  try {
    const stats = fstatSync(fd);
    if (!stats.isFile()) throw new Error('not a regular file');
    if (stats.size > bytesMax) throw new Error(`more than ${bytesMax} bytes`);
    return readFileSync(fd, 'utf8');
  } finally {
    closeSync(fd);
  }
}
