/** The settings table as the README prints it. */
import { SETTING_NAMES, settingRow } from './settings.ts';

/** Markdown table of all settings. */
export function settingsTable(): string {
  const lines = ['| Option | Environment | File key | Default | Meaning |', '|---|---|---|---|---|'];
  for (const name of SETTING_NAMES) {
    const { flag, kind, env, key, defaultText, description } = settingRow(name);
    const option =
      flag === undefined ? 'MODEL' : kind.metavar === 'true|false' ? `--${flag}` : `--${flag} ${kind.metavar}`;
    const fileKey = key === undefined ? '' : code(key);
    lines.push(`| ${[code(option), code(env), fileKey, defaultText, description].map(cellText).join(' | ')} |`);
  }
  return lines.join('\n');
}

function code(text: string): string {
  return `\`${text}\``;
}

/** Bars end a cell even within code; angle brackets would be taken for HTML. */
function cellText(cell: string): string {
  const safe = cell.replaceAll('|', '\\|');
  return safe.startsWith('`') ? safe : safe.replaceAll('<', '&lt;').replaceAll('>', '&gt;');
}
