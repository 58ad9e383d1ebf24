/** A first email in six languages. The key comes from the environment: a snippet is copied into places that are not secret. */

export const LANGUAGES = ['curl', 'python', 'node', 'php', 'ruby', 'go'] as const
export type Language = (typeof LANGUAGES)[number]

export interface Example {
  readonly origin: string
  readonly from: string
  readonly to: string
}

export function sendSnippet(language: Language, { origin, from, to }: Example): string {
  const url = JSON.stringify(`${origin}/emails`)
  const [sender, recipient] = [JSON.stringify(from), JSON.stringify(to)]
  const fields = (colon: string) => [`"from"${colon} ${sender}`, `"to"${colon} ${recipient}`, `"subject"${colon} "Hello"`, `"text"${colon} "Good morning."`]
  switch (language) {
    case 'curl':
      return [
        `curl ${url} \\`,
        '  -H "Authorization: Bearer $POSTHOUSE_API_KEY" \\',
        '  -H "Content-Type: application/json" \\',
        '  -H "Idempotency-Key: $(uuidgen)" \\',
        `  -d '{${fields(':').join(', ').replaceAll("'", `'\\''`)}}'`,
      ].join('\n')
    case 'python':
      return [
        'import os, uuid', '', 'import httpx', '', 'answer = httpx.post(', `    ${url},`, '    headers={',
        `        "Authorization": f"Bearer {os.environ['POSTHOUSE_API_KEY']}",`, '        "Idempotency-Key": str(uuid.uuid4()),', '    },',
        `    json={${fields(':').join(', ')}},`, ')', 'answer.raise_for_status()', 'print(answer.json()["id"])',
      ].join('\n')
    case 'node':
      return [
        `const answer = await fetch(${url}, {`, '  method: "POST",', '  headers: {', '    Authorization: `Bearer ${process.env.POSTHOUSE_API_KEY}`,',
        '    "Content-Type": "application/json",', '    "Idempotency-Key": crypto.randomUUID(),', '  },',
        `  body: JSON.stringify({ ${fields(':').join(', ')} }),`, '});', 'if (!answer.ok) throw new Error(await answer.text());', 'console.log((await answer.json()).id);',
      ].join('\n')
    case 'php':
      return [
        '<?php', '', `$request = curl_init(${php(`${origin}/emails`)});`, 'curl_setopt_array($request, [', '    CURLOPT_RETURNTRANSFER => true,', '    CURLOPT_HTTPHEADER => [',
        `        'Authorization: Bearer ' . getenv('POSTHOUSE_API_KEY'),`, `        'Content-Type: application/json',`, `        'Idempotency-Key: ' . bin2hex(random_bytes(16)),`, '    ],',
        `    CURLOPT_POSTFIELDS => json_encode(['from' => ${php(from)}, 'to' => ${php(to)}, 'subject' => 'Hello', 'text' => 'Good morning.']),`, ']);', 'echo curl_exec($request);',
      ].join('\n')
    case 'ruby':
      return [
        'require "json"', 'require "net/http"', 'require "securerandom"', '', 'answer = Net::HTTP.post(', `  URI(${ruby(`${origin}/emails`)}),`,
        `  JSON.generate("from" => ${ruby(from)}, "to" => ${ruby(to)}, "subject" => "Hello", "text" => "Good morning."),`,
        '  "Authorization" => "Bearer #{ENV.fetch("POSTHOUSE_API_KEY")}",', '  "Content-Type" => "application/json",', '  "Idempotency-Key" => SecureRandom.uuid', ')', 'puts answer.body',
      ].join('\n')
    case 'go':
      return [
        'package main', '', 'import (', '\t"bytes"', '\t"crypto/rand"', '\t"encoding/json"', '\t"fmt"', '\t"net/http"', '\t"os"', ')', '', 'func main() {',
        `\tbody, _ := json.Marshal(map[string]string{${fields(':').join(', ')}})`, `\trequest, _ := http.NewRequest("POST", ${url}, bytes.NewReader(body))`,
        '\trequest.Header.Set("Authorization", "Bearer "+os.Getenv("POSTHOUSE_API_KEY"))', '\trequest.Header.Set("Content-Type", "application/json")', '\trequest.Header.Set("Idempotency-Key", rand.Text())',
        '\tanswer, err := http.DefaultClient.Do(request)', '\tif err != nil {', '\t\tpanic(err)', '\t}', '\tdefer answer.Body.Close()', '\tfmt.Println(answer.Status)', '}',
      ].join('\n')
  }
}

const php = (text: string): string => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
/** Single quotes: in double quotes Ruby would run #{…}. */
const ruby = php
