"""DKIM keys: what is published belongs to what signs."""

import base64

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_der_public_key

from posthouse.mail import dkim


def test_the_published_key_checks_what_the_private_key_signs() -> None:
    pair = dkim.new_key_pair()
    private = load_der_private_key(pair.private_der, password=None)
    published = dkim.record_text(pair.public).partition("p=")[2]
    public = load_der_public_key(base64.b64decode(published, validate=True))
    assert isinstance(private, rsa.RSAPrivateKey)
    assert isinstance(public, rsa.RSAPublicKey)
    assert public.key_size == 2048
    public.verify(private.sign(b"mail", padding.PKCS1v15(), SHA256()), b"mail", padding.PKCS1v15(), SHA256())
    assert dkim.public_of(pair.private_der) == pair.public


def test_a_key_pair_shows_its_public_half_only() -> None:
    pair = dkim.KeyPair(b"private bytes", "cHVibGlj")
    assert "private bytes" not in repr(pair)
    assert dkim.record_text(pair.public) == "v=DKIM1; k=rsa; p=cHVibGlj"
