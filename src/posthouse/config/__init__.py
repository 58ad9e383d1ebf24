"""Settings: from the environment (`POSTHOUSE_…`) and one TOML file, in sections; the environment wins."""

from posthouse.config.environment import FILE_VARIABLE as FILE_VARIABLE
from posthouse.config.load import config_file as config_file
from posthouse.config.load import load as load
from posthouse.config.section import ConfigError as ConfigError
from posthouse.config.settings import Settings as Settings
