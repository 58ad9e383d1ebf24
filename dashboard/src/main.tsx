import { nonce } from './shell/policy'
import '@mantine/core/styles.css'
import { MantineProvider } from '@mantine/core'
import { QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { createRoot } from 'react-dom/client'
import { client } from './api/queries'
import { open } from './api/session'
import { accountOf } from './rules/address'
import { router } from './shell/router'
import { cssVariables, theme } from './shell/theme'

void open(accountOf(location.pathname))

const place = document.getElementById('root')
if (place === null) throw new Error('index.html lacks #root.')
createRoot(place).render(
  <MantineProvider theme={theme} cssVariablesResolver={cssVariables} defaultColorScheme="auto" getStyleNonce={() => nonce}>
    <QueryClientProvider client={client}>
      <RouterProvider router={router} />
    </QueryClientProvider>
  </MantineProvider>,
)
