/**
 * The kinds of value a setting can have: how text from a flag or variable becomes a value, what is accepted, and how a
 * message describes that. `schema` decides in every case, so that flags, variables and files agree.
 */
import { z } from 'zod';
import { formatSizeBytes, parseSizeBytes, SIZE_PATTERN } from './size.ts';

const TEXT_LENGTH_MAX = 4096;
const LIST_LENGTH_MAX = 64;

export interface SettingKind<T> {
  /** Completes "… is not ": `a port from 0 to 65535`. */
  readonly expects: string;
  /** Placeholder in the help: `PORT`. */
  readonly metavar: string;
  /** Checks a native value, as it stands in a file, and gives the value of the setting. */
  readonly schema: z.ZodType<T>;
  /** Native value of the text of a flag or variable; text that is none is handed on, for `schema` to refuse. */
  readonly fromText: (text: string) => unknown;
  readonly path?: true;
  readonly choices?: readonly string[];
}

const trueText = new Set(['true', '1', 'yes', 'on']);
const falseText = new Set(['false', '0', 'no', 'off']);

export function text(expects: string, metavar: string, pattern: RegExp): SettingKind<string> {
  return {
    expects,
    metavar,
    schema: z.string().min(1).max(TEXT_LENGTH_MAX).regex(pattern),
    fromText: (value) => value,
  };
}

/** A path; whoever resolves the settings makes it absolute, since only they know against which directory. */
export function path(what: string): SettingKind<string> {
  return {
    expects: `the path of ${what}`,
    metavar: what.endsWith('directory') ? 'DIR' : 'FILE',
    // A zero byte cannot stand in a path of the operating system.
    schema: z
      .string()
      .min(1)
      .max(TEXT_LENGTH_MAX)
      .refine((value) => !value.includes('\0')),
    fromText: (value) => value,
    path: true,
  };
}

export function choice<const T extends string>(metavar: string, choices: readonly T[]): SettingKind<T> {
  return {
    expects: `one of ${choices.join(', ')}`,
    metavar,
    schema: z.enum(choices),
    fromText: (value) => value.toLowerCase(),
    choices,
  };
}

export function flag(): SettingKind<boolean> {
  return {
    expects: 'true or false',
    metavar: 'true|false',
    schema: z.boolean(),
    fromText: (value) => {
      const folded = value.toLowerCase();
      return trueText.has(folded) ? true : falseText.has(folded) ? false : value;
    },
  };
}

export function integer(min: number, max: number, what: string, metavar = 'N'): SettingKind<number> {
  return {
    expects: `${what} from ${min} to ${max}`,
    metavar,
    schema: z.int().min(min).max(max),
    fromText: (value) => (/^[0-9]{1,15}$/.test(value) ? Number(value) : value),
  };
}

export function port(): SettingKind<number> {
  return integer(0, 65_535, 'a port', 'PORT');
}

/** A port, or `none` for no listening socket at all. */
export function portOrNone(): SettingKind<number | 'none'> {
  const { expects, metavar, schema, fromText } = port();
  return {
    expects: `${expects}, or none`,
    metavar,
    schema: z.union([schema, z.literal('none')]),
    fromText: (value) => (value.toLowerCase() === 'none' ? 'none' : fromText(value)),
  };
}

export function seconds(min: number, max: number): SettingKind<number> {
  return {
    expects: `a number of seconds from ${min} to ${max}`,
    metavar: 'SECONDS',
    schema: z.number().min(min).max(max),
    fromText: (value) => (/^[0-9]{1,9}(\.[0-9]{1,9})?$/.test(value) ? Number(value) : value),
  };
}

/** A number of bytes, also written as "64MiB" or "1GB". */
export function size(min: number, max: number): SettingKind<number> {
  const bytes = z.int().min(min).max(max);
  return {
    expects: `a size from ${formatSizeBytes(min)} to ${formatSizeBytes(max)}, such as 67108864, 64MiB or 1GB`,
    metavar: 'SIZE',
    schema: z
      .union([bytes, z.string().regex(SIZE_PATTERN)])
      .transform((value) => (typeof value === 'number' ? value : (parseSizeBytes(value) ?? Number.NaN)))
      .pipe(bytes),
    fromText: (value) => value,
  };
}

/**
 * Several texts. In a variable they are separated by spaces, or by commas before a letter: the comma in `cpu:0,2` belongs to
 * the name.
 */
export function textList(what: string): SettingKind<readonly string[]> {
  return {
    expects: `a list of ${what}`,
    metavar: 'NAME',
    schema: z.array(z.string().min(1).max(TEXT_LENGTH_MAX).regex(/\S/)).min(1).max(LIST_LENGTH_MAX),
    fromText: (value) => value.trim().split(/\s*,\s*(?=[A-Za-z])|\s+/),
  };
}
