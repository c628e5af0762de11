/** The settings table as options of yargs, and what yargs made of them as a source of settings. */
import type { Options } from 'yargs';
import { SETTING_NAMES, type SettingName, settingRow } from '../config/settings.ts';
import type { SettingSources } from '../config/settings-resolve.ts';
import { allTexts, type CommandArguments, lastText, valueOption } from './command.ts';

/** An option for each setting that has a flag. */
export function settingOptions(): Record<string, Options> {
  const options: Record<string, Options> = {};
  for (const name of SETTING_NAMES) {
    const { flag, kind, description: sentence, defaultText, group } = settingRow(name);
    if (flag === undefined) continue;
    const description = sentence.replace(/\.$/, '');
    const shared: Options = { group: `${group}:` };
    if (defaultText !== 'none') shared.defaultDescription = defaultText;
    if (kind.choices !== undefined) shared.choices = kind.choices;
    options[flag] =
      kind.metavar === 'true|false' ? { ...shared, description, type: 'boolean' } : valueOption(description, shared);
  }
  return options;
}

/** The settings among a command's arguments; the positional `model` is one of them. */
export function settingFlags(args: CommandArguments): NonNullable<SettingSources['flags']> {
  const flags: Partial<Record<SettingName, unknown>> = {};
  for (const name of SETTING_NAMES) {
    const value = args[settingRow(name).flag ?? 'model'];
    if (value === undefined) continue;
    if (name === 'devices' || name === 'loadModel') flags[name] = allTexts(value);
    else flags[name] = typeof value === 'boolean' ? value : lastText(value);
  }
  return flags;
}
