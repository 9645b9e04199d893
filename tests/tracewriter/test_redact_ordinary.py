"""What only looks like a secret, or talks about them, stays as it is, byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
import random

import pytest

from tracewriter.redact import Redactor

SHA = hashlib.sha1(b"a").hexdigest()
SHA256 = hashlib.sha256(b"a").hexdigest()
INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(b"a").digest()).decode()
IMAGE = "data:image/png;base64," + base64.b64encode(random.Random(4).randbytes(60_000)).decode()
URL_SAFE = base64.urlsafe_b64encode(random.Random(5).randbytes(60_000)).decode()

CODE = """
token = next(tokens)
token = tokens[0]
token: str | None = None
password: str
password: SecretStr = Field(min_length=8)
secret_key=None
self.token = token
self._password = password or getpass.getpass("Password: ")
api_key = os.environ["API_KEY"]
api_key = os.environ.get("OPENAI_API_KEY", "")
api_key=settings.api_key, secret=self.secret
def login(user: str, password: str, token: Token) -> None: ...
if token == "(": raise SyntaxError("unexpected token: ')'")
if not secret: return
match token: case Token.NAME: pass
parser.add_argument("--token", help="the token to use")
parser.add_argument("--password", required=True)
client = Client(api_key=api_key, token=token)
assert_token(token, expected_token)
def getpass(prompt: str = "Password: ", stream: TextIO | None = None, *, echo_char: str = "") -> str: ...
value = input("Password: "); other = input("Passphrase: ")
tokens_per_second = total_tokens / 3.5
max_tokens=4096, token_count=12345678, n_tokens: 31415926
PASSWORD_FIELD = "password"
primary_key=True; foreign_key="users.id"; sort_key = lambda item: item.key
class KeyError2(KeyError): key_type: str
const token = await getToken(); let password = req.body.password;
const { apiKey, secret } = config; apiKey: process.env.API_KEY,
password: process.env.DB_PASSWORD, token: `${token}`, secret: `Bearer ${token}`,
interface Auth { token: string; password?: string; secret: string | undefined }
var password *string; token := r.Header.Get("Authorization"); let token: Option<String> = None;
String password = request.getParameter("password");
headers["Authorization"] = f"Bearer {token}"
headers = {"Authorization": "Bearer " + token}
-H "Authorization: Bearer $TOKEN" -H "X-Api-Key: ${API_KEY}"
Authorization: required
Authorization failed with 401
cookie: Cookie = request.cookies
curl -u "$USER:$PASS" https://example.org
docker run -u 1000:1000 image
docker run --name mysql -p 3306:3306 image
docker run --name mysql -p3306:3306 image
mysql -u root -p shop
mysql -P3306 -p$MYSQL_PWD
  password: string
  password: encrypted,
    password: hashed
  password: newPassword
  password: SecretStr
  password: required
password=password
access-control-allow-origin: api-gateway-service, sdk-core-2.31.5, pa-in-out, fc-list, fw_version_string_long_enough
the api-3f8a1c9e endpoint, en-us, us-east-1-us2, glob-pattern, glassfish-server-runtime, MTA-STS, EAAccess, EAA
mysql.connector.connect(user=user, database=db), pass: ok, pass:fail, e2b_sandbox, snyk_test, sqp_ squ_ sq0
score_re_evaluated="re_compile_pattern_of_many_words" x=re_exported_names
"""
CONFIG = """
password: ${DB_PASSWORD}
password: <password>
password: {{ vault_password }}
token: $TOKEN
API_KEY=
API_KEY=$API_KEY
API_KEY=${API_KEY:-}
export TOKEN=$(cat /run/token)
TOKEN=<your token here>
api_key: your-api-key-here
api_key: "YOUR_API_KEY"
password: "********"
secretName: my-tls
token_url: https://example.org/oauth/token
password_file: /run/secrets/db
description: |
  how to set a password
secret: /run/secrets/db
PWD=/home/user/project
OLDPWD=/home/user
"type": "password", "label": "Password", "name": "password"
{"password": {"type": "string", "minLength": 8}}
{"error": "password must be at least eight characters"}
{"password": "Your password must be at least eight characters long"}
<input type="password" name="password" autocomplete="current-password">
<label for="password">Password</label>
"""
PROSE = """
A risk-based approach, task-management-system-with-many-words-2, disk-usage-0123456789abcdef01.
The token is required; the secret: keep calm. Bearer of bad news, the bearer instrument.
Forgot your password? The password: it is up to you. Pass the salt.
sk-loading-spinner-dots-pulse, sk-circle, .sk-fading-circle { } a sk- alone, and sk-short1
ask-me-anything-2024-and-more-text, mask-image-linear-gradient-0deg-1
See https://user@example.org/path?q=1#frag, http://localhost:8080/a@b, ssh://git@github.com/x/y.git
mailto:bob@example.org, bob.smith+tag@example.co.uk, http://[::1]:80/x@y
npm_config_registry_with_a_long_name, hf_transformers_cache_directory, pplx-7b-online, xai-grok
"""
DATA = f"""
commit {SHA}
{SHA256}  file.tar.gz
FROM python:3.13@sha256:{SHA256}
"resolved": "https://registry.example/x/-/x-1.0.0.tgz", "integrity": "{INTEGRITY}"
{{file = "x-1.0.0-py3-none-any.whl", hash = "sha256:{SHA256}"}},
f47ac10b-58cc-4372-a567-0e02b2c3d479 0193750000007000800000000000cafe
{{"usage":{{"input_tokens":20261129,"output_tokens":7,"cache_read_input_tokens":123456789}},"max_tokens":8192,"token":123}}
!function(e,t){{var n=t.token,r=e.secret;e.password=n,r.apiKey=t.apiKey,e.key=function(){{return n.key}}}}(this,window);
com.example.auth.TokenProvider.getToken org.springframework.security.oauth2.jwt.JwtDecoder
.btn-primary-token{{color:red}} .pwd-field-2a3b4c5d{{}} eyJ.abc.def eyJ is how JSON begins
-----BEGIN CERTIFICATE-----
MIIB
TUlJQ2VqQ0NBZU9nQXdJQkFnSVVFUnl0MGZyY0FhV0UyZjVtdmZFNmdoUnVMVEV3
TUlJQ2VqQ0NBZU9nQXdJQkFnSVVFUnl0MGZyY0FhV0UyZjVtdmZFNmdoUnVMVEV3
TUlJQ2VqQ0NBZU9nQXdJQkFnSVVFUnl0MGZyY0FhV0UyZjVtdmZFNmdoUnVMVEV3
TUlJQ2VqQ0NBZU9nQXdJQkFnSVVFUnl0MGZyY0FhV0UyZjVtdmZFNmdoUnVMVEV3
TUlJQ2VqQ0NBZU9nQXdJQkFnSVVFUnl0MGZyY0FhV0UyZjVtdmZFNmdoUnVMVEV3
-----END CERTIFICATE-----
-----BEGIN PUBLIC KEY-----
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8b8Yp5 bob@host
"""
CORPUS = [
    *dict.fromkeys(line for text in (CODE, CONFIG, PROSE, DATA) for line in text.strip().split("\n")),
    *(CODE, CONFIG, PROSE, DATA, IMAGE, URL_SAFE, "ctrl\rsk-\x08sk-", "print('\\u0041\\u0020')"),
]


@pytest.mark.parametrize("text", CORPUS, ids=lambda text: text[:40])
def test_ordinary_text_is_untouched(text: str) -> None:
    redactor = Redactor(("hunter2hunter2",))
    for _ in range(4):
        for value in (text, {text: 1}, [text, {"a": text}]):
            line = json.dumps({"seq": 1, "data": value}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            assert redactor.redact(line) == line
        text = json.dumps({"text": text}, ensure_ascii=False)


@pytest.mark.parametrize("name", ["max_tokens", "tokens", "token", "password", "secret", "api_key", "total_tokens"])
@pytest.mark.parametrize("value", [0, 123, 4096, 123456789012, 1.5, True, None, [], {}, ""])
def test_numbers_and_structure_are_no_secrets(name: str, value: object) -> None:
    line = json.dumps({"seq": 1, "data": {name: value}}).encode() + b"\n"
    for _ in range(4):
        assert Redactor().redact(line) == line
        line = json.dumps({"a": line.decode()}).encode() + b"\n"
