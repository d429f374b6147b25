import locale
import os
import time

print(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), locale.getlocale())
print(locale.setlocale(locale.LC_ALL, ""), f"{1234567.5:n}", locale.strcoll("a", "B") < 0)
print(os.fsencode("gr\u00fc\u00dfe"), time.strftime("%A %Z", time.gmtime(0)), time.tzname, time.localtime(0))
