// An OpenID provider for tests and the demo: the certified package `oidc-provider` with its own
// login and consent pages, which accept every password. Pages with passwords are tested with
// Keycloak.
//
//   node provider.js HOST ADDRESS PORT CERTIFICATE KEY USERS
//
// The issuer is https://HOST:PORT, and ADDRESS that of the listener. CERTIFICATE and KEY are PEM
// files. USERS is a JSON file: {"name": {"email": "...", "emailVerified": true, "groups": ["..."]}}.
// Sessions and grants are in memory and end with the process. Prints "ready" when it listens.

import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';

import Provider from 'oidc-provider';

const [host, address, port, certificate, key, usersFile] = process.argv.slice(2);
const users = JSON.parse(readFileSync(usersFile, 'utf8'));

const signingKeys = [
  { alg: 'RS256', pair: generateKeyPairSync('rsa', { modulusLength: 2048 }) },
  { alg: 'ES256', pair: generateKeyPairSync('ec', { namedCurve: 'P-256' }) },
].map(({ alg, pair }) => ({ ...pair.privateKey.export({ format: 'jwk' }), use: 'sig', alg, kid: alg }));

const provider = new Provider(`https://${host}:${port}`, {
  jwks: { keys: signingKeys },
  cookies: { keys: [signingKeys[1].d] },
  clients: [
    {
      client_id: 'pinniped-cli',
      client_name: 'Pinniped command line',
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      // A native application may use every port of the loopback interface (RFC 8252, section 7.3).
      redirect_uris: ['http://127.0.0.1/callback'],
      response_types: ['code'],
      grant_types: [
        'authorization_code',
        'refresh_token',
        'urn:ietf:params:oauth:grant-type:device_code',
      ],
    },
  ],
  scopes: ['openid', 'offline_access', 'email', 'groups'],
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  // Claims of granted scopes are in the ID token, not only in the response of the userinfo endpoint.
  conformIdTokenClaims: false,
  // Without this, the scope `offline_access` has an effect only on requests with `prompt=consent`.
  issueRefreshToken: async (_context, client) => client.grantTypeAllowed('refresh_token'),
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true }, deviceFlow: { enabled: true } },
  findAccount: (_context, name) =>
    users[name] && {
      accountId: name,
      claims: async () => ({
        sub: name,
        email: users[name].email,
        email_verified: users[name].emailVerified,
        groups: users[name].groups,
      }),
    },
  ttl: {
    AccessToken: 300,
    IdToken: 300,
    RefreshToken: 3600,
    DeviceCode: 600,
    Interaction: 600,
    Grant: 3600,
    Session: 3600,
  },
});
provider.on('server_error', (_context, error) => console.error(error));

createServer({ cert: readFileSync(certificate), key: readFileSync(key) }, provider.callback()).listen(
  Number(port),
  address,
  () => console.log('ready'),
);
